"""What the server does with each arrival; the name in a TOML file is the key here."""

from secureafl.defenses.async_sgd import AsyncSgd
from secureafl.defenses.secure_afl import SecureAfl

DEFENSES = {
    "async_sgd": AsyncSgd,
    "secure_afl": SecureAfl,
}
