"""Clients: what a unit computes and how, and the models it computes with."""
