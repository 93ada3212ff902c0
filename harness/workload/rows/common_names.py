"""Guesses which column of a file is which of the trace table, from names that other tools and logs give them.

A guess is only ever proposed in a message: nothing is read by it.
"""

from collections.abc import Iterable

# Small letters and digits only: `Prompt-Tokens` is `prompttokens`.
_COMMON_NAMES = {
    "num_prompt_tokens": """
        prompttokens numprompttokens nprompttokens promptlen promptlength promptsize promptntokens prompttokencount
        inputtokens numinputtokens ninputtokens inputlen inputlength inputsize inputtokencount isl
        contexttokens contextlen prefilltokens numprefilltokens requesttokens tokensin
    """,
    "num_output_tokens": """
        outputtokens numoutputtokens noutputtokens outputlen outputlength outputsize outputtokencount osl
        completiontokens numcompletiontokens completionlen completiontokencount
        generatedtokens numgeneratedtokens generationtokens genlen decodetokens numdecodetokens
        responsetokens responselen answertokens predictedn tokensout
    """,
    "arrival_time": """
        timestamp timestampms arrivaltime arrival arrivedat arrivaltimestamp arrivalts ts time datetime
        createdat created starttime startedat senttime sentat requesttime requesttimestamp receivedat
    """,
}
_OURS = {name: ours for ours, names in _COMMON_NAMES.items() for name in names.split()}


def likely_columns(found: Iterable[str]) -> dict[str, str]:
    """The trace table's column by the name in the file, for the first column of the file that seems to be each."""
    guesses: dict[str, str] = {}
    for name in found:
        ours = _OURS.get("".join(sign for sign in name.lower() if sign.isalnum()))
        if ours and ours not in guesses.values():
            guesses[name] = ours
    return guesses
