"""Pictures drawn by matplotlib: attention, positional encodings, curves of a training and trees. The report and the commands show them."""
