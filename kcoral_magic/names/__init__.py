"""Which names a cell reads, what they lead to, and which of them may be sent. Pure: values and text in, names out."""
