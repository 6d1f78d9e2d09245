"""What clients may use up: requests per minute (`rate`), and threads of a web process (`seats`)."""
