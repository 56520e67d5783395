"""Programs as data: what people write with a loss scale, drawn at random from one number each.

A program is a dict that JSON can hold.
"""

import random

from tests import keras_homes

SGD, MOMENTUM, ADAM = "sgd", "momentum", "adam"
V1_OPTIMIZERS = (SGD, MOMENTUM, ADAM, "rmsprop", "adagrad", "ftrl", "adadelta")
# "large" is finite, though the sum of its squares is not; "huge" overflows once it is scaled, and
# "half" where a row is looked up twice.
FAULTS = ("nan", "inf", "-inf", "huge", "large", "half")
PERIOD = 10**6  # Never reached: what happens at the end of a period is a race there.


class Draw:
    """Draws the parts of one program of a group.

    Of as many consecutive numbers as an option has values, each has another value of it, in an
    order of its own. So a few programs meet every action and every value of every option. (The
    strategies of hypothesis do not: of 60 examples, many are much alike.)
    """

    def __init__(self, number, *group):
        self.number, self.group, self.drawn = number, group, set()
        self.random = random.Random(f"{number} {group}")
        self.fault_kind = self.pick("fault", FAULTS)

    def pick(self, what, values):
        """One of some values; the first time that `what` is picked, that which has its turn."""
        values = list(values)
        if what in self.drawn:
            return self.random.choice(values)
        self.drawn.add(what)
        turn, place = divmod(self.number, len(values))
        return random.Random(f"{what} {turn} {self.group}").sample(values, len(values))[place]

    def one_in(self, what, count):
        """True in one of `count` programs."""
        return self.pick(what, [True] + [False] * (count - 1))

    def fault(self, replicas=1):
        """What is wrong with a step: None, or [kind, variable, element, replica]."""
        if not self.pick("faulty", [True, True, False, False, False]):
            return None
        if self.fault_kind == "half":  # In a row that is looked up twice.
            return ["half", 0, self.random.choice([0, 1]), 0]
        where = [self.random.randint(0, 3), self.random.choice([0, 0, 1, 2, 5])]
        return [self.fault_kind, *where, self.pick("replica", range(replicas))]

    def actions(self, step, others, low, high):
        """A list of actions: steps, and of the others a few kinds, one of which has its turn.

        `others` holds pairs of a name and the lists of values for its arguments, or a function that
        returns these. A kind that is there twice has its turn more often.
        """
        turn = self.pick("action", others)
        swarm = self.random.sample(others, self.random.randint(0, min(2, len(others))))
        kinds = [turn, *swarm] + [step] * (1 + len(swarm))
        count = self.random.randint(low, high) - 2
        listed = [self.random.choice(kinds) for _ in range(count)]
        listed.insert(self.random.randint(0, count), step)
        listed.insert(self.random.choice([0, self.random.randint(0, count + 1)]), turn)
        return [self.action(*each) for each in listed]

    def flags(self):
        """What is wrong with some steps in a row."""
        return [self.random.choice([None, None, "nan"]) for _ in range(self.random.randint(4, 10))]

    def action(self, name, *arguments):
        made = [
            argument() if callable(argument) else self.pick((name, index), argument)
            for index, argument in enumerate(arguments)
        ]
        return [name, *made]


def variables(draw, most, kinds, others, dtypes, shapes=(), partitions=(1,)):
    """Variables of a network, the first of which is trained.

    "rows" are looked up by index, with repeats; "unused" gets no gradient, "late" none in the
    first step.
    """
    return [
        {
            "shape": draw.pick("shape", [[2], [], [3, 2], *shapes]),
            "dtype": draw.pick("dtype", dtypes),
            "kind": draw.pick(("kind", index > 0), others if index else kinds),
            "partitions": draw.pick("partitions", partitions),
        }
        for index in range(draw.random.randint(1, most))
    ]


def v1_variables(draw, family, session, scale, most):
    kinds = ["rows"] if draw.fault_kind == "half" else ["dense", "rows"]
    others = ["dense", "rows"] * 3 + ["frozen"]
    # r1.15's optimizer takes no variable without a gradient, and r2.0's no dtype but float32.
    others += ["unused"] * (family not in ("contrib", "modelled"))
    dtypes = ["float32"] * (12 if family == "mixed" else 3) + ["float64"]
    if scale != ["fixed", [2.0**100]]:  # TensorFlow may fold it with its reciprocal.
        dtypes += ["float16"]
    partitions = [1, 1, 1, 1, 2] if session else [1]
    return variables(draw, most, kinds, others, dtypes, ([0, 2], [40]), partitions)


def loss_scale(draw, family, racing):
    """[class, arguments] of a loss scale or manager."""
    starts = [8.0, 1.1, 1024.0, 2.0**15, 100.0, 12345.678, 7e5] + [2.0**127, 1.2e38] * (not racing)
    if draw.fault_kind == "half":
        starts = [1.0, 1.1]
    if not racing and draw.one_in("fixed", 4):
        return ["fixed", draw.pick("value", [[8.0], [1.0], [128], [3.0], [2.0**100]])]
    start = draw.pick("start", starts)
    periods = [1, 2, 1, 3, 2000, 0] if start < 1e38 else [1]
    rule = [start, PERIOD if racing else draw.pick("period", periods)]
    if family not in ("contrib", "managers", "modelled"):
        return ["dynamic", [*rule, draw.pick("multiplier", [3.0, 2.0, 10.0, 1.5, 3.0])]]
    rule += [draw.pick("decr_every", [1, 2, 3]), draw.pick("incr_ratio", [2.0, 1.5, 3, 1.0])]
    return ["exponential", [*rule, draw.pick("decr_ratio", [0.5, 0.8, 0.25])]]


def beyond(draw, start):
    """What loss scales have beyond r2.0's; nothing in half of the programs."""
    bounds = [{"min_loss_scale": 0.5}, {"max_loss_scale": 3e38}]
    bounds += [{"max_loss_scale": 64.0}] * (start <= 64)
    return draw.pick("beyond", [{}] * 3 + bounds)


def v1_optimizer(draw, session):
    """An inner optimizer with its options and the way in which a step is written."""
    kind = draw.pick("optimizer", [ADAM, MOMENTUM, *V1_OPTIMIZERS])
    if session and draw.one_in("of BERT", 6):
        kind = "of BERT"
    rates = [0.5, 0.01]
    if session or kind not in ("ftrl", SGD):  # Which take no callable.
        rates += ["decay"]
    return {
        "kind": kind,
        "rate": draw.pick("rate", rates),
        "grad_loss": draw.pick("grad_loss", [None, None, 3.0]),
        "option": draw.pick("option", [False, True]),  # Nesterov, centered and the like.
        "way": draw.pick("way", ["minimize", "apart"]),
        "clip": draw.pick("clip", [None, None, "norm", "global_norm", "value"]),
        "global_step": draw.pick("global_step", [False, True]),
        "name": draw.pick("name", [None, None, "train"]),
    }


def v1_actions(draw, family, place, count, racing):
    """The actions of a program with `count` optimizers."""
    session = place.startswith("graph")
    which = range(count)
    step = "step", which, lambda: draw.fault(2 if place == "mirrored" else 1)
    if racing:
        # Of steps that run at once only what no order changes is compared.
        races = [("threads", which, [True, False])]
        if session and count == 2:
            races += [("both", [True, False])] * 2
        steps = [draw.action(*step) for _ in range(draw.random.randint(0, 2))]
        return [*steps, draw.action(*draw.pick("race", races))]
    if place == "mirrored":
        return draw.actions(step, [("read",), ("take",), ("scale",)], 3, 6)
    counts = "count", [0, 1, 5]
    many = "many", which, draw.flags
    others = [("scale",), ("read",), ("draw",), ("take",), ("look",), counts, many]
    others += [("set", [4.0, 16.0, 2.0**20, "nan", "inf", 1.2e38])]
    if family == "modelled" and session:  # A model has other operations, which seed others.
        others.remove(("draw",))
    if family in ("scales", "managers"):
        others += [many] * 3
    else:
        others += [("gradients", which)] * 3
        if session or family == "mixed":
            others += [("cross",)] * 2
    if family == "mixed":  # r1.15's answers nothing.
        others += [("ask",)] + [("branching",)] * (place == "eager")
    if family in ("contrib", "modelled") and place == "eager":
        others += [("fail", which)]
    if family == "scales" and place == "eager":
        others += [("arithmetic", [1.0, 3.0, 0.5])]
    if family == "scales" and place in ("eager", "graph_v1"):
        others += [("rewrite", ["sgd", "sgd", "wrapped"], ["dynamic", 8.0, None, "other", 0.5])]
    if session:
        others += [("network",), ("fetch", which), ("finalize",)]
    if place in ("function", "jit"):
        others += [("retrace", which)]
    return draw.actions(step, others, 3, 9)


def v1(number, family, place):
    """A program with contrib's or r2.0's optimizer ("contrib", "mixed") or the loss scale alone."""
    draw = Draw(number, family, place)
    session = place.startswith("graph")
    racing = place not in ("mirrored", "jit") and draw.one_in("racing", 8)
    count = draw.pick("race of", [2, 1]) if racing else draw.pick("count", [1, 1, 1, 2])
    inside = [None]
    if (session or place == "function") and family != "modelled":
        inside += [None] * 4 + ["cond", "while"]
    scale = loss_scale(draw, family, racing)
    program = {
        "family": family,
        "place": place,
        "resource": place == "graph_v2" or draw.pick("resource", [True, False]),
        "inside": draw.pick("inside", inside),
        "scale": scale,
        "shared": count == 2 and (racing or draw.pick("shared", [True, False])),
        "optimizers": [v1_optimizer(draw, session) for _ in range(count)],
        "variables": [v1_variables(draw, family, session, scale, 3 - count) for _ in range(count)],
        # Of XLA, random numbers differ from run to run; of races, operations are not compared.
        "noise": draw.one_in("noise", 4) and not (family == "modelled" or place == "jit" or racing),
        "actions": v1_actions(draw, family, place, count, racing),
    }
    if scale[1] and scale[1][0] > 1e38 and scale[0] != "fixed":  # Gradients are to be finite.
        for specs in program["variables"]:
            for spec in specs:
                spec.update(kind="dense", dtype="float32")
        for optimizer in program["optimizers"]:
            optimizer["grad_loss"] = None
    for specs in program["variables"] if racing else ():
        without_float16(specs)  # Some order may overflow.
    if family == "scales" and place == "eager" and scale[0] == "dynamic" and not racing:
        program["beyond"] = beyond(draw, scale[1][0])
        program["actions"].append(draw.action("many", [0], draw.flags))
    if session and family in ("contrib", "managers") and scale[0] == "fixed":
        # In a branch or loop such a manager makes a constant there, which Grappler may fold; two of
        # one number share a constant.
        alone = program["shared"] or len(program["optimizers"]) == 1
        wanted = draw.pick("elsewhere", [True, False])
        program["elsewhere"] = wanted and alone and not program["inside"]
    return program


def without_float16(specs):
    """Makes variables of float16 those of float32."""
    for spec in specs:
        if spec["dtype"] == "float16":
            spec["dtype"] = "float32"


KERAS_OPTIMIZERS = {
    "SGD": [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}],
    "Adam": [{}, {"amsgrad": True}],
    "RMSprop": [{}, {"momentum": 0.5}, {"centered": True}],
}
OTHERS = "Adagrad", "Adadelta", "Adamax", "Nadam", "Ftrl", "Adafactor", "AdamW", "Lion", "Lamb"


def keras_optimizer(draw, home, place, alone, counted):
    """[class, options] of an inner optimizer of a Keras home."""
    names = [name for name in (*KERAS_OPTIMIZERS, *OTHERS) if hasattr(home.optimizers, name)]
    if home.kind == "keras3" and (alone or place == "mirrored"):
        names.remove("Adafactor")  # By itself it builds itself twice there.
    name = draw.pick("optimizer", names)
    options = dict(draw.pick(name, KERAS_OPTIMIZERS.get(name, [{}])))
    extra = [{}, {}, {}, {"clipnorm": 0.5}, {"clipvalue": 0.25}]
    if home.kind != "v2":
        extra += [{"global_clipnorm": 0.5}, {"use_ema": True, "ema_overwrite_frequency": 2}]
        extra += [{"weight_decay": 0.01}]
    if home.kind == "keras3" and not home.before(3, 4) and counted is None:
        extra += [{"gradient_accumulation_steps": 2}]
    options.update(draw.pick("extra", extra))
    options["learning_rate"] = draw.pick("rate", [0.5, 0.01, "schedule"])
    return [name, options]


# Ways in which a training step of one's own is written.
WAYS = "get_scaled_loss", "clipped", "minimize", "applied_alone"
WAYS_OF_KERAS_3 = "scale_loss", "apply", "clipped_after", "minimize", "get_scaled_loss"


def keras_actions(draw, home, program, many):
    """What else a program does than steps."""
    place, stable = program["place"], program["family"].endswith("stable")
    if program["alone"]:
        return [("rate", [0.25, 0.0])]
    if place == "graph":
        return [("read",), ("read",), ("finalize",)]
    others = [("rate", [0.25, 0.0]), ("checkpoint",)]
    if place in ("eager", "function") and not program["variables"]:
        fit = "fit", lambda: [draw.fault() for _ in range(draw.random.randint(1, 3))]
        if home.kind == "keras3":
            return [others[0], fit, ("file",), ("model_file", [".keras"])]
        # Not after a checkpoint, of which Keras makes the variables in another order.
        others = [others[0], fit]
        if home.name == "v2" or keras_homes.VERSION >= (2, 11):
            others += [("model_file", [".h5"])]  # Without the state of other optimizers before.
        return others
    others += [many, many]
    if home.kind != "keras3":  # Which reads a scale and weights by no method.
        others += [("read",), ("weights",)]
    if program["multiplier"] == 2.0 and program["count_skipped"] is None:
        others += [("config",)]
    if stable:
        growth = [["dynamic_growth_steps", number] for number in (1, 2, 4)]
        others += [("attribute", [["initial_scale", 4.0], ["initial_scale", 1024.0]])] * 2
        others += [("attribute", growth)]
    if place == "eager" and home.kind != "keras3":
        others += [("branching",)]
    return [each for each in others if place != "jit" or each[0] != "checkpoint"]


def keras(number, home, api, place):
    """A program with the wrapper of a Keras home; `api` is "stable" or "experimental"."""
    draw = Draw(number, home.name, api, place)
    draw.fault_kind = draw.pick("kind of fault", FAULTS[:-1])
    eager = place in ("eager", "function")
    racing = eager and draw.one_in("racing", 16)
    stable, three = api == "stable" and eager and not racing, home.kind == "keras3"
    model = place != "graph" and not racing and draw.one_in("model", 4)
    alone = counted = None
    if stable and not model:
        if place == "eager":
            alone = draw.pick("alone", [None, None, None, "fixed"])
        counted = draw.pick("count_skipped", [None, None, True, False]) if not alone else None
    kinds, late = ["dense", "rows"], ["late"] * eager
    dtypes = ["float16"] if alone == "fixed" else ["float64", "float16", "float32", "float32"]
    if keras_homes.VERSION == (2, 0):  # Its own class takes no other.
        dtypes += ["float32"] * 10
    if three and place == "mirrored":  # Its own class does not accumulate in float16 there.
        dtypes.remove("float16")
    dynamic = three or racing or draw.pick("dynamic", [True, True, False])
    multiplier = stable and dynamic and not three and not alone
    starts = [2.0**26, 2.0**26, 8.0] if alone == "fixed" else [8.0, 1024.0, 2.0**15, 1.0]
    start = draw.pick(("start", alone), starts)
    program = {
        "family": f"{home.name} {api}",
        "place": place,
        "scale": [dynamic, start, PERIOD if racing else draw.pick("growth", [2, 1, 3, 2000])],
        "multiplier": draw.pick("multiplier", [2.0, 2.0, 4.0, 3.0]) if multiplier else 2.0,
        "optimizer": keras_optimizer(draw, home, place, alone, counted),
        "policy": draw.pick("policy", ["float32", "mixed_float16"]) if model else "float32",
        "variables": None if model else variables(draw, 3, kinds, kinds + late, dtypes),
        "noise": model and draw.one_in("noise", 4) and place != "jit",
        "alone": alone,
        "count_skipped": counted,
    }
    if eager and not racing:
        special = bool(alone or counted is not None)  # Which the other is to have, too.
        made = ["copy", "config"] if special else [None, "copy", "config"]
        program["made"] = draw.pick(("made", special), made)
        if program["optimizer"][0] in ("Adagrad", "AdamW", "Lion", "Adafactor") and not three:
            program["made"] = None  # That of 2.4 loses schedules in configs, those of 2.15 fail.
    fault = draw.fault
    if alone == "fixed":
        fault = [None]
        if program["optimizer"][1].get("gradient_accumulation_steps"):
            without_float16(program["variables"])  # Keras' own dynamic class fails, too.
    elif counted is not None:  # The side of the original counts these itself.
        fault = [None, ["nan", 0, 0, 0]]
    elif place == "mirrored":
        fault = lambda: draw.fault(2)  # noqa: E731
    ways = all_ways = WAYS_OF_KERAS_3 if three else WAYS
    half = any(v["dtype"] == "float16" for v in program["variables"] or ())
    if three and half and any("clip" in option for option in program["optimizer"][1]):
        ways = all_ways[:-1]  # Keras' own class clips in float32 what it unscales.
    if alone == "fixed":  # By itself it would clip other gradients.
        ways = [way for way in ways if way != "clipped_after"]
    if draw.pick("one way", [True, False]):
        ways = [draw.pick("way", ways)]
    step = "step", ways, fault
    if racing:
        without_float16(program["variables"])
        # Threads that update its averages at once may leave the root of a negative number.
        program["optimizer"][1].pop("centered", None)
        steps = [draw.action(*step) for _ in range(draw.random.randint(0, 1))]
        threads = draw.action("threads", all_ways[:1], [True, False])
        return dict(program, actions=[*steps, threads])
    others = keras_actions(draw, home, program, ("many", ways, draw.flags))
    if program["optimizer"][0] == "Nadam":  # Its files are without one of its variables.
        others = [each for each in others if each[0] != "model_file"]
    program["actions"] = draw.actions(step, others, 3, 7)
    if any(action[0] == "model_file" for action in program["actions"]):
        program["noise"] = False  # Seeds begin anew in a model that is loaded.
    return program


# What an option is in the simplest program that shows a find.
SIMPLEST = {"inside": None, "shared": False, "noise": False, "resource": True, "shape": [2]}
SIMPLEST.update(dtype="float32", kind="dense", partitions=1, policy="float32", name=None)
SIMPLEST.update(rate=0.5, learning_rate=0.5, option=False, clip=None, global_step=False)
SIMPLEST.update(grad_loss=None, made=None)


def simpler(program):
    """Yields copies of a program, or a part of one, that have one thing less."""
    if isinstance(program, dict):
        for key, value in program.items():
            less = [SIMPLEST[key]] if key in SIMPLEST else simpler(value)
            if key == "kind" and "rate" in program:  # Of an optimizer, not of a variable.
                less = [SGD]
            yield from (dict(program, **{key: each}) for each in less if each != value)
    elif isinstance(program, list) and program and isinstance(program[0], (dict, list)):
        actions = isinstance(program[0], list) and isinstance(program[0][0], str)
        for i, each in enumerate(program):
            before, after = program[:i], program[i + 1 :]
            if len(program) > 1 and (actions or (i and "shape" in each)):
                yield before + after
            less = [[*each[:-1], None]] if actions and each[0] == "step" else simpler(each)
            yield from (before + [simple] + after for simple in less if simple != each)
