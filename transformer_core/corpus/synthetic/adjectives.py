"""The adjectives: English, German [stem before an ending, where it differs], and the kinds of nouns they suit.

`-` for the German predicate: only used before a noun. The same English adjective in two lines has two translations, which the noun
tells apart: a short letter is "kurz", a short man "klein". Of the adjectives in one block only one stands before a noun, and
the blocks stand in the order that English has them in.
"""

ADJECTIVES = """
    right | richtig | idea
    right | - recht | body
    left | - link | body
    wrong | falsch | idea
    important | wichtig | mail idea text event query

    good | gut | person family parent food dish pastry staple drink text show idea instrument firm
    bad | schlecht | person dish text show idea firm

    beautiful | schön | hanging clothes building room nature plant settlement instrument upright animal
    ugly | hässlich | hanging clothes building furniture upright animal

    famous | berühmt | person text show hanging building settlement
    strange | seltsam | person text tale idea query
    interesting | interessant | text mail show event trip tale idea query
    boring | langweilig | text show event tale
    funny | lustig | text show tale mail

    expensive | teuer teur | flat upright hanging device instrument clothes vehicle furniture ticket building firm drink
    cheap | billig | flat upright device clothes vehicle furniture ticket firm drink

    friendly | freundlich | person family parent mail
    polite | höflich | person mail
    strict | streng | person family parent
    honest | ehrlich | person family parent idea

    clever | klug | person family parent animal idea
    lazy | faul | person family parent animal
    hard-working | fleißig | person family parent
    brave | mutig | person family parent animal
    curious | neugierig | person family parent animal

    difficult | schwierig | task query
    easy | einfach | task query
    hard | hart | furniture
    hard | schwer | task query

    comfortable | bequem | furniture clothes
    narrow | eng | clothes

    modern | modern | building firm device furniture

    big | groß | animal food building firm room nature plant settlement furniture upright device vehicle
    small | klein | animal food building firm room nature plant settlement furniture upright device vehicle hanging
    tall | groß | person
    tall | hoch hoh | building
    short | klein | person
    short | kurz | text mail tale event show trip
    long | lang | text mail tale event show trip

    heavy | schwer | upright furniture device
    light | leicht | upright clothes
    light | hell | room
    dark | dunkel dunkl | room building nature

    warm | warm | clothes dish room
    cold | kalt | dish drink room
    hot | heiß | dish drink

    fresh | frisch | food dish pastry staple
    sweet | süß | food pastry

    clean | sauber | clothes upright room vehicle opening
    dirty | schmutzig | clothes upright room vehicle opening

    empty | leer | upright room building furniture
    full | voll | upright
    broken | kaputt | hanging device instrument vehicle opening

    fast | schnell | vehicle animal
    slow | langsam | vehicle device

    quiet | ruhig | person room settlement
    loud | laut | animal device vehicle

    dangerous | gefährlich | animal nature trip device
    wild | wild | animal

    happy | glücklich | person family parent
    sad | traurig | person family parent tale mail
    tired | müde müd | person family parent animal
    sick | krank | person family parent animal
    healthy | gesund | person family parent animal food

    strong | stark | person family parent animal drink
    weak | schwach | person family parent animal drink

    rich | reich | person family parent settlement
    poor | arm | person family parent settlement

    old | alt | person family parent animal text flat upright hanging device clothes vehicle furniture building firm settlement opening
    young | jung | person family parent animal
    new | neu | text ticket flat upright hanging device instrument clothes vehicle furniture building firm room show idea task

    round | rund | furniture hanging

    red | rot | flat upright clothes vehicle furniture opening plant
    blue | blau | flat upright clothes vehicle furniture opening
    green | grün | flat upright clothes vehicle furniture opening
    yellow | gelb | flat upright clothes vehicle furniture plant
    black | schwarz | animal clothes vehicle device furniture
    white | weiß | animal clothes vehicle plant opening
    brown | braun | animal clothes furniture
    grey | grau | animal clothes

    foreign | fremd | settlement
    German | deutsch | person text show vehicle
    English | englisch | text show vehicle
    French | französisch | text show drink
"""
