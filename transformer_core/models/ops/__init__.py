"""What makes a model fast, apart from the page that says what it computes: `choice.py` chooses it from device, precision and purpose."""
