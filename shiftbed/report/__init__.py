"""What people look at: live views, the demo, and later pages and figures."""
