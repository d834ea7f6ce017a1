"""Followers: their requests, their leader's responses, and the effect on their logs."""
