"""What the gateway keeps of principals: files, and values on their way."""
