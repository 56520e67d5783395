"""Programs as data: strategies of hypothesis for what people write with a loss scale.

A program is a dict that JSON can hold. Its first values are the simplest, so that a find shrinks
to them.
"""

from hypothesis import strategies as st

SGD, MOMENTUM, ADAM = "sgd", "momentum", "adam"
V1_OPTIMIZERS = (SGD, MOMENTUM, ADAM, "rmsprop", "adagrad", "ftrl", "adadelta")
# "large" is finite, though the sum of its squares is not; "huge" overflows once it is scaled.
FAULTS = ("nan", "inf", "-inf", "huge", "large")
PERIOD = 10**6  # Never reached: what happens at the end of a period is a race there.


def one_in(count):
    """True in one of `count` programs."""
    return st.sampled_from([False] * (count - 1) + [True])


def faults(replicas=1):
    """What is wrong with the gradients of a step: None, or [kind, variable, element, replica]."""
    where = st.tuples(
        st.sampled_from(FAULTS),
        st.integers(0, 3),
        st.integers(0, 5),
        st.integers(0, replicas - 1),
    )
    return st.none() | st.none() | where.map(list)


def v1_variables(family, session, count):
    """Variables of a network for v1 optimizers, the first of which is trained."""
    # r1.15's optimizer takes no variable without a gradient, and r2.0's no dtype but float32.
    kinds = (
        ["dense"] * 6 + ["rows"] * 2 + ["frozen"] + ["unused"] * (1 if family == "contrib" else 2)
    )
    dtypes = ["float32"] * (20 if family == "mixed" else 4) + ["float16", "float64"]

    def variable(kinds):
        return st.fixed_dictionaries(
            {
                "shape": st.sampled_from([[2], [], [3, 2], [0, 2], [40]]),
                "dtype": st.sampled_from(dtypes),
                # "rows" are looked up by index, with repeats; "unused" gets no gradient.
                "kind": st.sampled_from(kinds),
                "partitions": st.sampled_from([1, 1, 1, 1, 2]) if session else st.just(1),
            }
        )

    others = st.lists(variable(kinds), max_size=count - 1)
    return st.tuples(variable(kinds[:8]), others).map(lambda parts: [parts[0], *parts[1]])


def loss_scales(family, racing):
    """[class, arguments] of a loss scale or manager."""
    starts = [8.0, 1.0, 1024.0, 2.0**15, 100.0]
    starts = st.sampled_from(starts if racing else [*starts * 3, 2.0**127])
    periods = st.just(PERIOD) if racing else st.sampled_from([2, 1, 3, 2000])
    fixed = st.tuples(st.just("fixed"), st.sampled_from([[8.0], [1.0], [128], [3.0], [2.0**100]]))
    if family in ("contrib", "managers"):
        moving = st.tuples(
            st.just("exponential"),
            st.tuples(
                starts,
                periods,
                st.sampled_from([1, 2, 3]),
                st.sampled_from([2.0, 1.5, 3, 1.0]),
                st.sampled_from([0.5, 0.8, 0.25]),
            ).map(list),
        )
    else:
        multipliers = st.sampled_from([2.0, 4.0, 1.5, 3.0])
        moving = st.tuples(st.just("dynamic"), st.tuples(starts, periods, multipliers).map(list))
    chosen = moving if racing else st.one_of(moving, moving, fixed)
    return chosen.map(list)


def v1_optimizers(family):
    """An inner optimizer with its options and the way in which a step is written."""
    return st.fixed_dictionaries(
        {
            "kind": st.sampled_from(V1_OPTIMIZERS),
            "rate": st.sampled_from([0.5, 0.01, "decay"]),
            "option": st.booleans(),  # Nesterov, centered and the like.
            "way": st.sampled_from(["minimize", "apart"]),
            "clip": st.sampled_from([None, None, "norm", "global_norm", "value"]),
            "global_step": st.booleans(),
            "name": st.sampled_from([None, None, "train"]),
        }
    )


def tagged(name, *arguments):
    return st.tuples(st.just(name), *arguments).map(list)


def v1_actions(family, place, count, racing):
    """Lists of actions of a program with `count` optimizers."""
    session = place.startswith("graph")
    which = st.integers(0, count - 1)
    step = tagged("step", which, faults(2 if place == "mirrored" else 1))
    if racing:
        # Of steps that run at once only what no order changes is compared.
        races = [tagged("threads", which, st.booleans())]
        if session and count == 2:
            races += [tagged("both", st.booleans())] * 2
        return st.tuples(st.lists(step, max_size=2), st.one_of(races)).map(
            lambda parts: [*parts[0], parts[1]]
        )
    actions = [step] * 6
    actions += [tagged("scale"), tagged("read"), tagged("draw"), tagged("take"), tagged("look")]
    actions += [tagged("set", st.sampled_from([4.0, 16.0, 2.0**20, "nan", "inf", 2.0**127]))]
    if family not in ("scales", "managers"):
        if family == "mixed":  # r1.15's answers nothing.
            actions += [tagged("ask")]
        if place != "mirrored":
            actions += [tagged("gradients", which)]
        if session or family == "mixed":
            actions.append(tagged("cross"))
    if session:
        actions += [tagged("network"), tagged("fetch", which), tagged("finalize")]
    if place in ("function", "jit"):
        actions.append(tagged("retrace", which))
    return st.lists(st.one_of(actions), min_size=1, max_size=9)


@st.composite
def v1(draw, family, place):
    """A program with contrib's or r2.0's optimizer ("contrib", "mixed") or the loss scale alone."""
    session = place.startswith("graph")
    inside = session or place == "function"
    racing = place != "mirrored" and place != "jit" and draw(one_in(5))
    count = draw(st.sampled_from([2, 1])) if racing else draw(st.sampled_from([1, 1, 1, 2]))
    shared = count == 2 and (racing or draw(st.booleans()))
    return {
        "family": family,
        "place": place,
        "resource": place == "graph_v2" or draw(st.booleans()),
        "inside": draw(st.sampled_from([None] * 5 + ["cond", "while"])) if inside else None,
        "scale": draw(loss_scales(family, racing)),
        "shared": shared,
        "optimizers": [draw(v1_optimizers(family)) for _ in range(count)],
        "variables": [draw(v1_variables(family, session, 3 - count)) for _ in range(count)],
        "noise": draw(one_in(3)),
        "actions": draw(v1_actions(family, place, count, racing)),
    }


KERAS_OPTIMIZERS = {
    "SGD": [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}],
    "Adam": [{}, {"amsgrad": True}],
    "RMSprop": [{}, {"momentum": 0.5}, {"centered": True}],
    "Adagrad": [{}],
    "Adadelta": [{}],
    "Adamax": [{}],
    "Nadam": [{}],
    "Ftrl": [{}],
    "Adafactor": [{}],
    "AdamW": [{}],
    "Lion": [{}],
    "Lamb": [{}],
}


@st.composite
def keras_optimizers(draw, home):
    """[class, options] of an inner optimizer of a Keras home."""
    names = [name for name in KERAS_OPTIMIZERS if hasattr(home.optimizers, name)]
    name = draw(st.sampled_from(names))
    options = dict(draw(st.sampled_from(KERAS_OPTIMIZERS[name])))
    extra = [{}, {}, {}, {"clipnorm": 0.5}, {"clipvalue": 0.25}]
    if home.kind != "v2":
        extra += [{"global_clipnorm": 0.5}, {"use_ema": True, "ema_overwrite_frequency": 2}]
        extra += [{"weight_decay": 0.01}]
    if home.kind == "keras3" and not home.before(3, 4):
        extra += [{"gradient_accumulation_steps": 2}]
    options.update(draw(st.sampled_from(extra)))
    options["learning_rate"] = draw(st.sampled_from([0.5, 0.01, "schedule"]))
    return [name, options]


def keras_ways(home):
    """Ways in which a training step of one's own is written for this Keras."""
    if home.kind == "keras3":
        return ("scale_loss", "apply", "clipped_after")
    return ("get_scaled_loss", "clipped", "minimize", "applied_alone")


@st.composite
def keras(draw, home, api, place):
    """A program with the wrapper of a Keras home; `api` is "stable" or "experimental"."""
    racing = place in ("eager", "function") and draw(one_in(12))
    replicas = 2 if place == "mirrored" else 1
    step = tagged("step", st.sampled_from(keras_ways(home)), faults(replicas))
    actions = [step] * 4
    actions += [tagged("read"), tagged("rate", st.sampled_from([0.25, 0.0]))]
    actions += [tagged("weights"), tagged("config")]
    if place == "graph":
        actions = [step] * 3 + [tagged("read"), tagged("read"), tagged("finalize")]
    elif place != "jit":
        actions += [tagged("checkpoint")]
        if home.kind == "keras3":
            actions += [tagged("file")]
        if place in ("eager", "function"):
            fit = tagged("fit", st.lists(faults(), min_size=1, max_size=3))
            actions += [fit] * (1 if place == "function" else 2)
    growth = PERIOD if racing else draw(st.sampled_from([2, 1, 3, 2000]))
    starts = [8.0, 1024.0, 2.0**15, 1.0]
    listed = st.lists(st.one_of(actions), min_size=1, max_size=6)
    if racing:
        ending = tagged("threads", st.sampled_from(keras_ways(home)[:1]), st.booleans())
        listed = st.tuples(st.lists(step, max_size=1), ending).map(lambda p: [*p[0], p[1]])
    dynamic = home.kind == "keras3" or racing or draw(st.sampled_from([True, True, False]))
    return {
        "family": f"{home.name} {api}",
        "place": place,
        "scale": [dynamic, draw(st.sampled_from(starts)), growth],
        "optimizer": draw(keras_optimizers(home)),
        "policy": draw(st.sampled_from(["float32", "mixed_float16"]))
        if place != "graph"
        else "float32",
        "noise": draw(one_in(4)),
        "actions": draw(listed),
    }
