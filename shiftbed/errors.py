"""Errors that speak to the person: each message says what is wrong, where, and what to do."""


class ShiftbedError(Exception):
    """Base of every error a user can cause or meet; its message is one clear sentence."""


class UnknownNameError(ShiftbedError):
    """A name that no registry entry has."""


class DataError(ShiftbedError):
    """Data that cannot be used as it is."""


class HparamError(ShiftbedError):
    """A hyperparameter that does not exist or has an impossible value."""


class AlgorithmError(ShiftbedError):
    """An algorithm that cannot run on what it was given."""


class StoreError(ShiftbedError):
    """A record store that cannot be read or written."""
