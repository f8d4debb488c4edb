"""From values and text to what a front end shows. Pure."""
