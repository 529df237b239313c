"""Fixed adverbials of time, manner and attitude: English | German, by when or how they are used.

The English ones that stand at the end of a clause are given with their part of speech tags, so that a tree can be built of them.
"""

# May stand at the end of the English clause or at its front.
TIMES: dict[str, str] = {
    "past": """
        yesterday/NN | gestern
        yesterday/NN evening/NN | gestern Abend
        this/DT morning/NN | heute Morgen
        last/JJ week/NN | letzte Woche
        last/JJ month/NN | letzten Monat
        last/JJ year/NN | letztes Jahr
        last/JJ summer/NN | letzten Sommer
        last/JJ Sunday/NNP | letzten Sonntag
        at/IN the/DT weekend/NN | am Wochenende
        on/IN Monday/NNP | am Montag
        on/IN Tuesday/NNP | am Dienstag
        on/IN Wednesday/NNP | am Mittwoch
        on/IN Thursday/NNP | am Donnerstag
        on/IN Friday/NNP | am Freitag
        on/IN Saturday/NNP | am Samstag
        in/IN spring/NN | im Frühling
        in/IN autumn/NN | im Herbst
        in/IN winter/NN | im Winter
    """,
    "present": """
        today/NN | heute
        now/RB | jetzt
        at/IN the/DT moment/NN | im Moment
        this/DT evening/NN | heute Abend
    """,
    "habit": """
        every/DT day/NN | jeden Tag
        every/DT morning/NN | jeden Morgen
        every/DT week/NN | jede Woche
        every/DT evening/NN | jeden Abend
        every/DT year/NN | jedes Jahr
        in/IN the/DT morning/NN | am Morgen
        at/IN night/NN | in der Nacht
        at/IN the/DT weekend/NN | am Wochenende
        on/IN Sunday/NNP | am Sonntag
        in/IN winter/NN | im Winter
    """,
    "future": """
        tomorrow/NN | morgen
        tomorrow/NN evening/NN | morgen Abend
        soon/RB | bald
        today/NN | heute
        next/JJ week/NN | nächste Woche
        next/JJ month/NN | nächsten Monat
        next/JJ year/NN | nächstes Jahr
        next/JJ summer/NN | nächsten Sommer
        on/IN Monday/NNP | am Montag
        on/IN Tuesday/NNP | am Dienstag
        on/IN Thursday/NNP | am Donnerstag
        on/IN Friday/NNP | am Freitag
        on/IN Saturday/NNP | am Samstag
        in/IN spring/NN | im Frühling
        in/IN autumn/NN | im Herbst
    """,
}

# Stand before the English main verb, after the auxiliary.
FREQUENCY = """
    often | oft
    always | immer
    sometimes | manchmal
    never | nie
    usually | meistens
    rarely | selten
"""
PERFECT = """
    already | schon
    just | gerade
    never | noch nie
    often | oft
"""

# Stand at the front of the English clause, before a comma.
ATTITUDE = """
    unfortunately | leider
    perhaps | vielleicht
    fortunately | zum Glück
    of course | natürlich
    suddenly | plötzlich
    probably | wahrscheinlich
"""

# Stand at the end of the English clause.
MANNER = """
    slowly | langsam
    quickly | schnell
    carefully | vorsichtig
    quietly | leise
"""

GAMES = """
    the/DT piano/NN | Klavier
    the/DT guitar/NN | Gitarre
    the/DT violin/NN | Geige
    the/DT flute/NN | Flöte
    football/NN | Fußball
    tennis/NN | Tennis
    chess/NN | Schach
    cards/NNS | Karten
"""

MEANS = """
    train/NN | mit dem Zug
    bus/NN | mit dem Bus
    car/NN | mit dem Auto
    bicycle/NN | mit dem Fahrrad
    ship/NN | mit dem Schiff
"""

# English and German plural after a number.
UNITS: dict[str, tuple[str, str]] = {
    "euro": ("euros", "Euro"),
    "kilo": ("kilos", "Kilo"),
    "minute": ("minutes", "Minuten"),
    "page": ("pages", "Seiten"),
    "inhabitant": ("inhabitants", "Einwohner"),
    "day": ("days", "Tage"),
    "week": ("weeks", "Wochen"),
    "month": ("months", "Monate"),
    "year": ("years", "Jahre"),
}
