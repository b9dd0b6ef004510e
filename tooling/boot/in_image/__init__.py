"""Scripts that run inside an image, with its interpreter and its packages."""
