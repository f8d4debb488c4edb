"""What tools write, as data: pure, bytes and text in, values out. A report is a stranger's file until it is read."""
