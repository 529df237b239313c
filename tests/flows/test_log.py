from flows.process.log import StageLog


def test_lines_are_said_and_a_training_moves_a_bar() -> None:
    said: list[str] = []
    shown: list[float] = []
    log = StageLog(said.append, shown.append)
    updates = [f"update {update:,} of 2,000: 900 tok/s" for update in (500, 1000, 1500, 2000)]
    for line in ["training 6,500 parameters", "", updates[0], updates[1], "update 1,000: valid PPL 9.40", updates[2], updates[3], "done"]:
        log(line)
    # Within a minute: the first update and the last.
    assert said == ["training 6,500 parameters", updates[0], "update 1,000: valid PPL 9.40", updates[3], "done"]
    assert shown == [25, 50, 75, 100]
    assert log.last_line == "done"


def test_the_last_line_is_known_whatever_the_log_shows() -> None:
    log = StageLog(lambda _: None, lambda _: None)
    log("update 1 of 9: a")
    log("update 2 of 9: b")
    log(" ")
    assert log.last_line == "update 2 of 9: b"
