"""Bodies and answers of the API. Requests of the domain are ``replay.specs`` models as they stand."""
