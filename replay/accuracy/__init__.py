"""Measured runs replayed and compared: what a folder of experiments says of the error of latencies end to end."""
