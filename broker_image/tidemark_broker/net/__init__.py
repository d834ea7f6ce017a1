"""The broker's sockets: frames in, frames out, limits; knows nothing of what the requests mean."""
