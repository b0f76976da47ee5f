"""What can be varied, and how values are combined; nothing is trained here."""

from __future__ import annotations

import math
import sys
from typing import Any

import pytest

from clocs import Store
from clocs.errors import SettingError
from clocs.experiments.sweep.samplers import Known, number_of_trials, propose
from clocs.experiments.sweep.space import (
    Point,
    Range,
    Varied,
    check_same_loss,
    check_space,
    combinations,
    parse_space,
)


def values(text: str, **fixed: Any) -> Any:
    name, _, given = text.partition("=")
    return parse_space({name: given}, fixed)[0].values


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lr=0.0001,1e-3", (0.0001, 0.001)),
        ("epochs=5, 10", (5, 10)),
        ("clip=none,1", (None, 1.0)),
        ("optimiser=adam,adamw", ("adam", "adamw")),
        ("leads=II+V2,I", (("II", "V2"), ("I",))),
        ("perturb=gaussian(a=2,b=1)>sa_t,sa_t", ("gaussian(a=2,b=1)>sa_t", "sa_t")),
        ("init=../a..b,c", ("../a..b", "c")),
        ("temperature=0.05..0.5", Range(0.05, 0.5, log=False, whole=False)),
        ("lr=log:1e-5..1e-2", Range(1e-5, 1e-2, log=True, whole=False)),
        ("embedding_dim=log:8..128", Range(8, 128, log=True, whole=True)),
        ("segments=2..4", Range(2, 4, log=False, whole=True)),
    ],
)  # fmt: skip
def test_values_are_read_as_what_pretrain_takes(text: str, expected: Any) -> None:
    assert values(text) == expected


def test_values_from_python_are_taken_as_they_are() -> None:
    (one,) = parse_space({"leads": [("II", "V2"), ("I",)]}, {})
    assert one.values == (("II", "V2"), ("I",))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("lrr=1,2", "has no option lrr; did you mean lr"),
        ("tau_d=0.9,0.99", "with this method has no option tau_d"),
        ("lr=0.1,fast", "`lr` must be a number, not 'fast'"),
        ("epochs=1.5,2", "`epochs` must be a whole number, not '1.5'"),
        ("temperature=0,0.1", "`temperature` must be a number above 0, not 0.0"),
        ("optimiser=adam,sgd", "`optimiser` must be adam or adamw, not 'sgd'"),
        ("encoder=cnn,vit", "`encoder` must be cnn or .* not 'vit'"),
        ("method=cmsc,moco", "there is no method 'moco'"),
        ("lr=0.1,0.1", "give distinct ones"),
        ("lr=0.1..0.01", "from a number up to a higher one"),
        ("lr=log:0..0.01", "from a number above 0 up to a higher one"),
        ("split_seed=0,1", "`split_seed` cannot be varied: trials would be scored on different"),
        ("seeds=1,2", "`seeds` cannot be varied: every trial has the same seeds"),
        ("device=cpu,cuda", "`device` cannot be varied: it does not change what is learned"),
    ],
)
def test_what_pretrain_does_not_take_is_refused_with_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        values(text)


def test_an_option_is_varied_or_given_not_both() -> None:
    with pytest.raises(SettingError, match="`lr` is varied and also given"):
        values("lr=0.1,0.2", lr=0.1)
    with pytest.raises(SettingError, match="nothing is varied"):
        parse_space({}, {})


@pytest.mark.parametrize(
    ("vary", "fixed", "sentence"),
    [
        ({"weight_decay": "0.1,0.2"}, {}, "`weight_decay` needs `optimiser=adamw`"),
        ({"dropout": "0.1,1.5"}, {}, "`dropout` must be at least 0 and below 1"),
        ({"method": "cmsc,byol", "temperature": "0.1,0.2"}, {}, "byol does not take `temperature`"),
        ({"leads": "II,V99"}, {}, "V99"),
        ({"leads": "II,V2"}, {"method": "cmlc"}, "choose at least two `leads`"),
        ({"perturb": "gaussian,shake"}, {"method": "simclr"}, "no perturbation 'shake'"),
        ({"seconds": "-1..5"}, {}, "`seconds` must be above 0"),
        ({"lr": "0.1,0.2"}, {"colour": "red"}, "cmsc does not take `colour`"),
    ],
)
def test_combinations_that_cannot_be_trained_are_refused_before_any_is(
    vary: dict[str, str], fixed: dict[str, Any], sentence: str, small_store: Store
) -> None:
    with pytest.raises(SettingError, match=sentence):
        check_space(parse_space(vary, fixed), fixed, [small_store])


def test_losses_on_different_scales_are_not_compared() -> None:
    check_same_loss(parse_space({"lr": "0.1,0.2", "encoder": "cnn,resnet"}, {}))
    for name, given in {"temperature": "0.1,0.2", "batch_size": "32,64"}.items():
        with pytest.raises(SettingError, match=f"`{name}` are on different scales"):
            check_same_loss(parse_space({name: given}, {}))


SPACE = parse_space({"lr": "log:1e-5..1e-1", "segments": "2..4", "optimiser": "adam,adamw"}, {})


def proposed(sampler: str, count: int, seed: int = 0, space: Any = SPACE) -> list[Point]:
    known: list[Known] = []
    for _ in range(count):
        known.append(Known(propose(space, sampler, seed, known, maximise=True)))
    return [one.point for one in known]


def test_a_grid_is_all_combinations_in_order() -> None:
    space = parse_space({"lr": "0.1,0.2", "optimiser": "adam,adamw"}, {})
    points = proposed("grid", number_of_trials(space, "grid", None), space=space)
    assert points == list(combinations(space))
    assert [tuple(point.values()) for point in points] == [
        *((0.1, "adam"), (0.1, "adamw"), (0.2, "adam"), (0.2, "adamw"))
    ]


def test_random_draws_depend_on_seed_and_number_alone_and_none_comes_twice() -> None:
    points = proposed("random", 60)
    assert proposed("random", 20) == points[:20]
    assert proposed("random", 5, seed=1) != points[:5]
    assert all(1e-5 <= point["lr"] <= 1e-1 for point in points)
    assert {point["segments"] for point in points} == {2, 3, 4}
    assert 15 < sum(point["lr"] < 1e-3 for point in points) < 45  # half of the logarithms
    few = parse_space({"optimiser": "adam,adamw", "segments": "2..4"}, {})
    assert len({tuple(point.values()) for point in proposed("random", 6, space=few)}) == 6


def test_numbers_of_trials_that_do_not_fit_the_sampler_are_refused() -> None:
    for sampler, trials, sentence in (
        ("grid", None, "a grid needs values, but `vary` gives lr a range"),
        ("random", None, "needs a number of `trials`"),
        ("bayes", 3, "there is no sampler 'bayes'"),
    ):
        with pytest.raises(SettingError, match=sentence):
            number_of_trials(SPACE, sampler, trials)
    lists = (Varied("lr", (0.1, 0.2)),)
    with pytest.raises(SettingError, match="here 2; leave out `trials`"):
        number_of_trials(lists, "grid", 2)
    with pytest.raises(SettingError, match="only 2 combinations"):
        number_of_trials(lists, "random", 3)


def test_optuna_goes_where_scores_were_high_and_none_comes_twice() -> None:
    pytest.importorskip("optuna")

    def distances(sampler: str) -> list[float]:
        known: list[Known] = []
        for _ in range(30):
            point = propose(SPACE[:1], sampler, 0, known, maximise=True)
            known.append(Known(point, -abs(math.log10(point["lr"]) + 3)))
        assert len({one.point["lr"] for one in known}) == 30
        return [-(one.score or 0) for one in known]

    assert sum(distances("optuna")[15:]) < 0.75 * sum(distances("random")[15:])


def test_optuna_proposes_the_same_after_a_resumption_also_with_trials_under_way() -> None:
    pytest.importorskip("optuna")
    known = [Known(p, float(n)) for n, p in enumerate(proposed("random", 12))]
    known += [Known(proposed("random", 13)[12]), Known(proposed("random", 14)[13], failed=True)]
    first, again = (propose(SPACE, "optuna", 0, known, maximise=False) for _ in range(2))
    assert first == again
    assert first["lr"] == float(f"{first['lr']:.4g}")


def test_without_optuna_a_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(SettingError, match=r"needs Optuna.*pip install '\.\[sweep\]'"):
        number_of_trials(SPACE, "optuna", 3)
