"""The verbs: how they are inflected, what they take, and what may be their subject and object.

A line has five fields, parted by "|":

1. English: base[, past, participle[, -ing]] where these are irregular, then "+ particle or preposition".
2. German: [sich | sich3] [prefix|]infinitive, third person singular, participle, then `ist` for the perfect with sein, `=` and a
   preterite where the English past is not turned into a perfect, a preposition and its case (4 accusative, 3 dative).
3. Frame: `i` nothing, `a` accusative, `d` dative, `da` dative and accusative, `to` the same with an English "to", `p` the preposition,
   `l` a place where, `g` a place to go to, `by` the same and a means, `foot` the same walking, `put` accusative and a place to go to, `on`
   a place on furniture, `play`, `adj` an adjective, `job`, `m` a measure, `c` a clause with "that", `w` a question clause, `z` an
   infinitive.
4. Subjects: kinds of nouns, or groups of them ("@people"); and `state` for a verb without progressive, `lasting` for one that goes on.
5. Objects, the same way. For `m` the unit and the range, for `adj` and `job` the adjectives, where not every one will do.

The same English verb in two lines may have two translations: subject, object or frame say which one is meant.
"""

GROUPS: dict[str, str] = {
    "@people": "person person person person family parent",
    "@beings": "person person person family animal",
    "@meal": "food dish pastry staple",
    "@ware": "flat upright hanging device instrument clothes vehicle furniture text",
    "@small": "flat text clothes",
    "@place": "building firm nature settlement",
    "@writing": "text mail",
    "@describable": (
        "flat upright hanging device instrument clothes vehicle furniture text food dish pastry staple drink building firm room idea task "
        "tale query mail event show animal plant settlement"
    ),
}

VERBS = """
    sleep slept slept | schlafen schläft geschlafen | i | @beings |
    work | arbeiten arbeitet gearbeitet | i | @people |
    laugh | lachen lacht gelacht | i | @people |
    cry | weinen weint geweint | i | @people |
    dance | tanzen tanzt getanzt | i | @people |
    sing sang sung | singen singt gesungen | i | @people |
    smile | lächeln lächelt gelächelt | i | @people |
    smoke | rauchen raucht geraucht | i | @people |
    swim swam swum swimming | schwimmen schwimmt geschwommen ist | i | @beings |
    get got got getting + up | auf|stehen steht aufgestanden ist | i | @people |
    wake woke woken + up | auf|wachen wacht aufgewacht ist | i | @beings |
    fall fell fallen + asleep | ein|schlafen schläft eingeschlafen ist | i | @beings |
    arrive | an|kommen kommt angekommen ist | i | @people vehicle |
    leave left left | ab|fahren fährt abgefahren ist | i | vehicle |
    come came come + back | zurück|kommen kommt zurückgekommen ist | i | @people |
    disappear | verschwinden verschwindet verschwunden ist | i | @beings flat |
    hurry | sich beeilen beeilt beeilt | i | @people |
    sit sat sat sitting + down | sich setzen setzt gesetzt | i | @people |
    rest | sich aus|ruhen ruht ausgeruht | i | @people |
    get got got getting + dressed | sich an|ziehen zieht angezogen | i | @people |
    begin began begun beginning | beginnen beginnt begonnen | i | event show |
    end | enden endet geendet | i | event show |
    take took taken + place | statt|finden findet stattgefunden | i | event |
    hurt hurt hurt | weh|tun tut wehgetan | i | body |
    stop stopped stopped stopping | an|halten hält angehalten | i | vehicle |
    rain | regnen regnet geregnet | i | weather |
    snow | schneien schneit geschneit | i | weather |
    shine shone shone | scheinen scheint geschienen | i | sky |

    read read read | lesen liest gelesen | a | @people | @writing
    write wrote written | schreiben schreibt geschrieben | a | @people | @writing
    buy bought bought | kaufen kauft gekauft | a | @people | @ware @meal drink ticket plant
    sell sold sold | verkaufen verkauft verkauft | a | @people | @ware @meal ticket animal
    see saw seen | sehen sieht gesehen | a | @beings state | @beings @ware @place plant
    find found found | finden findet gefunden | a | @people | @small upright ticket animal task
    look + for | suchen sucht gesucht | a | @people | @small ticket @people firm
    need | brauchen braucht gebraucht | a | @people state | flat upright device vehicle furniture clothes idea
    have had had | haben hat gehabt =hatte | a | @people state | @ware @meal drink animal idea task ticket query
    like | mögen mag gemocht =mochte | a | @people state | @people animal drink staple clothes show settlement
    love | lieben liebt geliebt | a | @people state | @people animal nature
    know knew known | kennen kennt gekannt =kannte | a | @people state | @people building settlement tale
    eat ate eaten | essen isst gegessen | a | @people | @meal
    eat ate eaten | fressen frisst gefressen | a | animal | food staple
    drink drank drunk | trinken trinkt getrunken | a | @people | drink
    cook | kochen kocht gekocht | a | @people | dish
    bake | backen backt gebacken | a | @people | pastry
    order | bestellen bestellt bestellt | a | @people | dish pastry drink
    open | öffnen öffnet geöffnet | a | @people | opening mail
    close | schließen schließt geschlossen | a | @people | opening
    turn + on | ein|schalten schaltet eingeschaltet | a | @people | device
    turn + off | aus|schalten schaltet ausgeschaltet | a | @people | device
    collect | ab|holen holt abgeholt | a | @people | @people
    invite | ein|laden lädt eingeladen | a | @people | @people
    call | an|rufen ruft angerufen | a | @people | @people
    visit | besuchen besucht besucht | a | @people | @people building settlement show
    repair | reparieren repariert repariert | a | @people | vehicle device
    build built built | bauen baut gebaut | a | @people | building furniture
    paint | malen malt gemalt | a | @people | animal plant
    paint | streichen streicht gestrichen | a | @people | opening room furniture
    wash | waschen wäscht gewaschen | a | @people | clothes vehicle
    clean + up | auf|räumen räumt aufgeräumt | a | @people | room
    carry | tragen trägt getragen | a | @people | upright furniture
    wear wore worn | tragen trägt getragen | a | @people | clothes
    lose lost lost | verlieren verliert verloren | a | @people | flat clothes ticket
    forget forgot forgotten forgetting | vergessen vergisst vergessen | a | @people | flat ticket idea sign
    learn | lernen lernt gelernt | a | @people | sign
    understand understood understood | verstehen versteht verstanden | a | @people state | idea task
    translate | übersetzen übersetzt übersetzt | a | @people | @writing
    hear heard heard | hören hört gehört | a | @people animal state | @beings tale
    watch | beobachten beobachtet beobachtet | a | @beings | @beings
    watch | sich3 an|sehen sieht angesehen | a | @people | show
    describe | beschreiben beschreibt beschrieben | a | @people | @people building
    draw drew drawn | zeichnen zeichnet gezeichnet | a | @people | building animal nature sign
    pay paid paid | bezahlen bezahlt bezahlt | a | @people | amount
    earn | verdienen verdient verdient | a | @people | amount
    save | sparen spart gespart | a | @people | amount
    save | retten rettet gerettet | a | @people | @beings
    spend spent spent | aus|geben gibt ausgegeben | a | @people | amount
    spend spent spent | verbringen verbringt verbracht | a | @people | period
    miss | verpassen verpasst verpasst | a | @people | vehicle
    miss | vermissen vermisst vermisst | a | @people state | @people animal
    leave left left | verlassen verlässt verlassen | a | @people | building room settlement
    run ran run running | leiten leitet geleitet | a | @people | firm
    take took taken | nehmen nimmt genommen | a | @people | vehicle
    catch caught caught | fangen fängt gefangen | a | @beings | animal
    throw threw thrown + away | weg|werfen wirft weggeworfen | a | @people | @small
    try tried tried + on | an|probieren probiert anprobiert | a | @people | clothes
    put put put putting + on | an|ziehen zieht angezogen | a | @people | clothes
    take took taken + off | aus|ziehen zieht ausgezogen | a | @people | clothes
    prepare | vor|bereiten bereitet vorbereitet | a | @people | event trip
    check | prüfen prüft geprüft | a | @people | device vehicle text
    steal stole stolen | stehlen stiehlt gestohlen | a | @people | flat vehicle
    hide hid hidden | verstecken versteckt versteckt | a | @people | flat mail
    bring brought brought + along | mit|bringen bringt mitgebracht | a | @people | food pastry staple drink text
    break broke broken | zerbrechen zerbricht zerbrochen | a | @people | upright
    use | benutzen benutzt benutzt | a | @people | device vehicle flat
    solve | lösen löst gelöst | a | @people | task
    answer | beantworten beantwortet beantwortet | a | @people | query mail
    ask | fragen fragt gefragt | a | @people | @people
    meet met met | treffen trifft getroffen | a | @people | @people
    follow | folgen folgt gefolgt ist | d | @beings | @beings vehicle
    help | helfen hilft geholfen | d | @people | @people
    thank | danken dankt gedankt | d | @people | @people
    believe | glauben glaubt geglaubt | d | @people state | @people
    answer | antworten antwortet geantwortet | d | @people | @people
    congratulate | gratulieren gratuliert gratuliert | d | @people | @people
    listen + to | zu|hören hört zugehört | d | @people | @people
    belong + to | gehören gehört gehört | d | @ware state | @people

    give gave given | geben gibt gegeben | da | @people | @ware animal ticket
    show showed shown | zeigen zeigt gezeigt | da | @people | @ware building mail
    send sent sent | schicken schickt geschickt | da | @people | mail text plant
    bring brought brought | bringen bringt gebracht | da | @people | upright @meal drink
    lend lent lent | leihen leiht geliehen | da | @people | vehicle text clothes instrument
    offer | an|bieten bietet angeboten | da | @people | pastry drink
    tell told told | erzählen erzählt erzählt | da | @people | tale
    promise | versprechen verspricht versprochen | da | @people | animal plant trip
    explain | erklären erklärt erklärt | to | @people | idea task
    recommend | empfehlen empfiehlt empfohlen | to | @people | text show firm drink

    wait + for | warten wartet gewartet auf4 | p | @people | @people vehicle mail
    think thought thought + of | denken denkt gedacht an4 | p | @people | @people trip event
    talk + about | sprechen spricht gesprochen über4 | p | @people | idea event text show
    dream + of | träumen träumt geträumt von3 | p | @people | trip animal nature
    look + forward to | sich freuen freut gefreut auf4 | p | @people | event trip show
    take took taken + part in | teil|nehmen nimmt teilgenommen an3 | p | @people | event
    laugh + about | lachen lacht gelacht über4 | p | @people | tale idea
    remember | sich erinnern erinnert erinnert an4 | p | @people state | @people trip event
    complain + about | sich beschweren beschwert beschwert über4 | p | @people | vehicle room dish device
    ask + for | bitten bittet gebeten um4 | p | @people | drink flat
    look + after | sich kümmern kümmert gekümmert um4 | p | @people | @people animal

    live | wohnen wohnt gewohnt | l | @people lasting | city room building settlement
    stay | bleiben bleibt geblieben ist | l | @people | city room building firm settlement
    work | arbeiten arbeitet gearbeitet | l | @people lasting | city firm room settlement nature
    wait | warten wartet gewartet | l | @people lasting | building firm room nature
    be was been | sein ist gewesen ist =war | l | @beings state | city building firm room nature settlement
    sleep slept slept | schlafen schläft geschlafen | l | @beings | room nature building

    go went gone | gehen geht gegangen ist | g | @people | building firm room nature settlement
    drive drove driven | fahren fährt gefahren ist | g | @people | city building firm nature
    travel travelled travelled travelling | reisen reist gereist ist | g | @people | city
    fly flew flown | fliegen fliegt geflogen ist | g | @people | city
    run ran run running | rennen rennt gerannt ist | g | @beings | building firm nature
    move | um|ziehen zieht umgezogen ist | g | @people | city
    return | zurück|kehren kehrt zurückgekehrt ist | g | @people | city firm room
    go went gone | fahren fährt gefahren ist | by | @people | city
    walk | gehen geht gegangen ist | foot | @people | building firm nature

    put put put putting | legen legt gelegt | put | @people | @small
    put put put putting | stellen stellt gestellt | put | @people | upright
    put put put putting | hängen hängt gehängt | put | @people | hanging
    lie lay lain lying | liegen liegt gelegen | on | animal flat text |
    stand stood stood | stehen steht gestanden | on | upright |
    hang hung hung | hängen hängt gehangen | on | hanging |

    play | spielen spielt gespielt | play | @people |
    be was been | sein ist gewesen ist =war | adj | @people @describable state |
    become became become | werden wird geworden ist | adj | @beings | tired rich famous sick healthy happy sad strong weak old
    look | aus|sehen sieht ausgesehen | adj | @beings clothes room state |
    feel felt felt | sich fühlen fühlt gefühlt | adj | @people | tired sick healthy happy strong weak old
    be was been | sein ist gewesen ist =war | job | @people state | good bad famous rich poor young strict honest polite
    become became become | werden wird geworden ist | job | @people | good bad famous rich poor strict honest polite

    cost cost cost | kosten kostet gekostet | m | vehicle device furniture clothes state | euro 10 999
    cost cost cost | kosten kostet gekostet | m | building firm state | euro 10000 999999
    weigh | wiegen wiegt gewogen | m | animal upright furniture state | kilo 2 99
    take took taken | dauern dauert gedauert | m | event show state | minute 2 99
    have had had | haben hat gehabt =hatte | m | text state | page 10 999
    have had had | haben hat gehabt =hatte | m | settlement state | inhabitant 100 999999

    say said said | sagen sagt gesagt | c | @people |
    think thought thought | denken denkt gedacht | c | @people state |
    believe | glauben glaubt geglaubt | c | @people state |
    hope | hoffen hofft gehofft | c | @people state |
    know knew known | wissen weiß gewusst =wusste | c | @people state |
    hear heard heard | hören hört gehört | c | @people state |
    claim | behaupten behauptet behauptet | c | @people |
    fear | fürchten fürchtet gefürchtet | c | @people state |
    notice | bemerken bemerkt bemerkt | c | @people state |
    know knew known | wissen weiß gewusst =wusste | w | @people state |
    ask | fragen fragt gefragt | w | @people |
    wonder | sich fragen fragt gefragt | w | @people |
    try | versuchen versucht versucht | z | @people |
    decide | beschließen beschließt beschlossen | z | @people |
    hope | hoffen hofft gehofft | z | @people state |
    forget forgot forgotten forgetting | vergessen vergisst vergessen | z | @people |
    plan planned planned planning | planen plant geplant | z | @people |
    promise | versprechen verspricht versprochen | z | @people |
    begin began begun beginning | an|fangen fängt angefangen | z | @people |
    refuse | sich weigern weigert geweigert | z | @people |
"""
