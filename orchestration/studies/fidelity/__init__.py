"""Do two backends agree? Four scenarios on both, and the page that says where and why not."""
