"""What several tests share: a private home with a real broker, and a real terminal."""
