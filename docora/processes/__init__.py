"""The processes of one host: `manage.py up`, the workers, the web server, the embedded Valkey."""
