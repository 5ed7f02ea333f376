"""All queries. What belongs to a tenant is filtered in one place, ``scope.of_tenant``."""
