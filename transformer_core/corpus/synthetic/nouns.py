"""The nouns, by kind of thing. A line: English[/plural], gender, German nominative, plural, then what is irregular.

`es` is the genitive in -es, `weak` the declension of der Student (den Studenten), `gen=` any other genitive; `he` and `she` are the
English pronoun where it does not follow from kind and gender, `job` what one may be. A plural "-" is one that is not used. `of=` and
`for=` are an English noun and its German genitive or accusative that always follow: the clue to which of two meanings is meant. Places
say where one is and where one goes: `in:in>in4` is "in the ..." = "in + dative", "to the ..." = "in + accusative"; furniture says `on`
or `in`. A blank inside a word is written "_".
"""

NOUNS: dict[str, str] = {
    "person": """
        man/men m Mann Männer es
        woman/women f Frau Frauen
        boy m Junge Jungen weak
        girl n Mädchen Mädchen she
        teacher m Lehrer Lehrer job
        student m Student Studenten weak
        doctor m Arzt Ärzte es job
        nurse f Krankenschwester Krankenschwestern job
        farmer m Bauer Bauern weak job
        baker m Bäcker Bäcker job
        gardener m Gärtner Gärtner job
        driver m Fahrer Fahrer
        policeman/policemen m Polizist Polizisten weak job
        judge m Richter Richter job
        artist m Künstler Künstler job
        actress/actresses f Schauspielerin Schauspielerinnen job
        waitress/waitresses f Kellnerin Kellnerinnen job
        saleswoman/saleswomen f Verkäuferin Verkäuferinnen job
        cook m Koch Köche es job
        customer m Kunde Kunden weak
        guest m Gast Gäste es
        tourist m Tourist Touristen weak
        queen f Königin Königinnen
        engineer m Ingenieur Ingenieure job
        lawyer m Anwalt Anwälte job
        mayor m Bürgermeister Bürgermeister job
        writer m Schriftsteller Schriftsteller job
        pilot m Pilot Piloten weak job
        soldier m Soldat Soldaten weak job
        thief/thieves m Dieb Diebe es
        pupil m Schüler Schüler
        professor m Professor Professoren job
        journalist m Journalist Journalisten weak job
    """,
    "family": """
        brother m Bruder Brüder
        sister f Schwester Schwestern
        son m Sohn Söhne es
        daughter f Tochter Töchter
        uncle m Onkel Onkel
        aunt f Tante Tanten
        cousin m Cousin Cousins
        friend m Freund Freunde es
        neighbour m Nachbar Nachbarn weak
        colleague m Kollege Kollegen weak
        boss m Chef Chefs
    """,
    "parent": """
        father m Vater Väter
        mother f Mutter Mütter
        grandfather m Großvater Großväter
        grandmother f Großmutter Großmütter
    """,
    "animal": """
        dog m Hund Hunde es
        cat f Katze Katzen
        horse n Pferd Pferde es
        cow f Kuh Kühe
        bird m Vogel Vögel
        pig n Schwein Schweine es
        goat f Ziege Ziegen
        mouse/mice f Maus Mäuse
        rabbit n Kaninchen Kaninchen
        duck f Ente Enten
        bear m Bär Bären weak
        lion m Löwe Löwen weak
        monkey m Affe Affen weak
        wolf/wolves m Wolf Wölfe es
        fox m Fuchs Füchse es
    """,
    "food": """
        apple m Apfel Äpfel
        pear f Birne Birnen
        orange f Orange Orangen
        banana f Banane Bananen
        tomato/tomatoes f Tomate Tomaten
    """,
    "dish": """
        soup f Suppe Suppen
        potato/potatoes f Kartoffel Kartoffeln
        sausage f Wurst Würste
        egg n Ei Eier
        salad m Salat Salate
    """,
    "pastry": """
        cake m Kuchen Kuchen
        pizza f Pizza Pizzen
        biscuit m Keks Kekse es
        bread_roll n Brötchen Brötchen
    """,
    "staple": """
        bread n Brot - es
        cheese m Käse -
        meat n Fleisch - es
        rice m Reis - es
        chocolate f Schokolade -
    """,
    "drink": """
        coffee m Kaffee -
        tea m Tee -
        milk f Milch -
        water n Wasser -
        wine m Wein - es
        beer n Bier - es
        juice m Saft - es
    """,
    "text": """
        book n Buch Bücher es
        newspaper f Zeitung Zeitungen
        novel m Roman Romane
        poem n Gedicht Gedichte
        report m Bericht Berichte
        article m Artikel Artikel
    """,
    "mail": """
        letter m Brief Briefe es
        message f Nachricht Nachrichten
        postcard f Postkarte Postkarten
    """,
    "tale": """
        story/stories f Geschichte Geschichten
        joke m Witz Witze es
        secret n Geheimnis Geheimnisse gen=Geheimnisses
    """,
    "query": """
        question f Frage Fragen
    """,
    "idea": """
        idea f Idee Ideen
        plan m Plan Pläne
        answer f Antwort Antworten
        decision f Entscheidung Entscheidungen
        word n Wort Wörter es
        rule f Regel Regeln
        mistake m Fehler Fehler
    """,
    "sign": """
        letter m Buchstabe Buchstaben weak gen=Buchstabens of=the_alphabet:des_Alphabets of=the_word:des_Wortes
    """,
    "task": """
        problem n Problem Probleme
        task f Aufgabe Aufgaben
        puzzle n Rätsel Rätsel
        exercise f Übung Übungen
    """,
    "flat": """
        key m Schlüssel Schlüssel
        spoon m Löffel Löffel
        fork f Gabel Gabeln
        knife/knives n Messer Messer
        blanket f Decke Decken
        camera f Kamera Kameras
        ring m Ring Ringe es
        pencil m Bleistift Bleistifte
    """,
    "ticket": """
        ticket f Eintrittskarte Eintrittskarten for=the_concert:das_Konzert for=the_film:den_Film
        ticket f Fahrkarte Fahrkarten for=the_train:den_Zug for=the_bus:den_Bus
    """,
    "upright": """
        bottle f Flasche Flaschen
        glass/glasses n Glas Gläser es
        cup f Tasse Tassen
        vase f Vase Vasen
        suitcase m Koffer Koffer
        box f Kiste Kisten
        basket m Korb Körbe es
        candle f Kerze Kerzen
    """,
    "hanging": """
        picture n Bild Bilder es
        mirror m Spiegel Spiegel
        clock f Uhr Uhren
        calendar m Kalender Kalender
    """,
    "device": """
        computer m Computer Computer
        radio n Radio Radios
        lamp f Lampe Lampen
        machine f Maschine Maschinen
        television m Fernseher Fernseher
    """,
    "instrument": """
        piano n Klavier Klaviere
        guitar f Gitarre Gitarren
        violin f Geige Geigen
        flute f Flöte Flöten
    """,
    "opening": """
        door f Tür Türen
        window n Fenster Fenster
        gate n Tor Tore es
    """,
    "furniture": """
        table m Tisch Tische es on
        chair m Stuhl Stühle on
        bed n Bett Betten es on
        sofa n Sofa Sofas on
        cupboard m Schrank Schränke es in
        carpet m Teppich Teppiche on
        shelf/shelves n Regal Regale on
    """,
    "clothes": """
        coat m Mantel Mäntel
        shirt n Hemd Hemden es
        dress n Kleid Kleider es
        hat m Hut Hüte es
        shoe m Schuh Schuhe
        jacket f Jacke Jacken
        pullover m Pullover Pullover
        skirt m Rock Röcke es
        glove m Handschuh Handschuhe
    """,
    "vehicle": """
        car n Auto Autos
        bus m Bus Busse gen=Busses
        train m Zug Züge es
        bicycle n Fahrrad Fahrräder
        ship n Schiff Schiffe es
        boat n Boot Boote es
        plane n Flugzeug Flugzeuge
        lorry m Lastwagen Lastwagen
        tram f Straßenbahn Straßenbahnen
        taxi n Taxi Taxis
    """,
    "building": """
        house n Haus Häuser es in:in>zu3
        church f Kirche Kirchen in:in>in4
        castle n Schloss Schlösser es in:in>zu3
        tower m Turm Türme es in:in>zu3
        bridge f Brücke Brücken on:auf>zu3
        station m Bahnhof Bahnhöfe at:an>zu3
        airport m Flughafen Flughäfen at:an>zu3
        museum n Museum Museen in:in>in4
        theatre n Theater Theater in:in>in4
        cinema n Kino Kinos in:in>in4
        hospital n Krankenhaus Krankenhäuser es in:in>in4
        library f Bibliothek Bibliotheken in:in>in4
        bank f Bank Banken in:in>zu3
    """,
    "firm": """
        hotel n Hotel Hotels in:in>zu3
        restaurant n Restaurant Restaurants in:in>in4
        factory f Fabrik Fabriken in:in>zu3
        shop n Geschäft Geschäfte in:in>zu3
        bakery f Bäckerei Bäckereien in:in>zu3
        pharmacy f Apotheke Apotheken in:in>zu3
        school f Schule Schulen in:in>in4
    """,
    "room": """
        room n Zimmer Zimmer in:in>in4
        flat f Wohnung Wohnungen in:in>in4
        kitchen f Küche Küchen in:in>in4
        office n Büro Büros in:in>in4
    """,
    "nature": """
        river m Fluss Flüsse es at:an>zu3
        lake m See Seen at:an>an4
        mountain m Berg Berge es on:auf>auf4
        forest m Wald Wälder es in:in>in4
        island f Insel Inseln on:auf>auf4
        beach m Strand Strände es on:an>an4
        field n Feld Felder es in:auf>auf4
        garden m Garten Gärten in:in>in4
        park m Park Parks in:in>in4
        market m Markt Märkte es at:auf>auf4
        harbour m Hafen Häfen in:in>zu3
        bank n Ufer Ufer of=the_river:des_Flusses of=the_lake:des_Sees on:an>an4
    """,
    "plant": """
        flower f Blume Blumen
        tree m Baum Bäume es
        rose f Rose Rosen
    """,
    "settlement": """
        city f Stadt Städte in:in>in4
        village n Dorf Dörfer es in:in>in4
        country n Land Länder es in:in>in4
    """,
    "event": """
        concert n Konzert Konzerte
        meeting f Sitzung Sitzungen
        wedding f Hochzeit Hochzeiten
        party f Feier Feiern
        exam f Prüfung Prüfungen
        course m Kurs Kurse es
        lecture m Vortrag Vorträge
    """,
    "trip": """
        journey f Reise Reisen
        holiday m Urlaub Urlaube
    """,
    "show": """
        film m Film Filme
        game n Spiel Spiele
        exhibition f Ausstellung Ausstellungen
        play n Theaterstück Theaterstücke
    """,
    "sky": """
        sun f Sonne Sonnen
        moon m Mond Monde es
    """,
    "wall": """
        wall f Wand Wände on:an>an4
    """,
    "body": """
        hand f Hand Hände
        foot/feet m Fuß Füße es
        leg n Bein Beine es
        arm m Arm Arme es
    """,
    "period": """
        evening m Abend Abende
        weekend n Wochenende Wochenenden
        summer m Sommer Sommer
        afternoon m Nachmittag Nachmittage
        day m Tag Tage es
    """,
}

MEN: tuple[str, ...] = ("Peter", "Paul", "Martin", "Stefan", "Daniel", "Michael", "Oliver", "David")
WOMEN: tuple[str, ...] = ("Anna", "Maria", "Julia", "Laura", "Sophie", "Clara", "Emma", "Lena")
SURNAMES: tuple[str, ...] = ("Weber", "Schmidt", "Becker", "Fischer", "Wagner", "Hoffmann")

# English, German where, German where to.
CITIES_AND_COUNTRIES: tuple[tuple[str, str, str], ...] = (
    ("Berlin", "in Berlin", "nach Berlin"),
    ("Hamburg", "in Hamburg", "nach Hamburg"),
    ("Munich", "in München", "nach München"),
    ("Cologne", "in Köln", "nach Köln"),
    ("Vienna", "in Wien", "nach Wien"),
    ("Zurich", "in Zürich", "nach Zürich"),
    ("Paris", "in Paris", "nach Paris"),
    ("London", "in London", "nach London"),
    ("Rome", "in Rom", "nach Rom"),
    ("Prague", "in Prag", "nach Prag"),
    ("Dresden", "in Dresden", "nach Dresden"),
    ("Germany", "in Deutschland", "nach Deutschland"),
    ("Austria", "in Österreich", "nach Österreich"),
    ("France", "in Frankreich", "nach Frankreich"),
    ("Italy", "in Italien", "nach Italien"),
    ("Spain", "in Spanien", "nach Spanien"),
    ("Switzerland", "in der Schweiz", "in die Schweiz"),
)
