"""Watches by kopf; its handlers only pass the object on."""
