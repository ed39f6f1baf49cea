"""Commands about models as files: got, made, and looked at."""
