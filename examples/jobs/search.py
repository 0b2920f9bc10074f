r"""Searches hyperparameters with Optuna. Each trial is a training on all ranks, or a small job of its own.

    python examples/jobs/search.py                               # one process
    tfdistrun -np 2 python examples/jobs/search.py               # two: all ranks train each trial
    CODE=$PWD/examples COMMAND="python jobs/search.py" EXTRA_PACKAGES="scikit-learn optuna" \
        docker compose -f compose/train.yaml up --build --exit-code-from launcher    # two containers

    python examples/jobs/search.py --ranks 2                     # starts a job of two ranks for each trial

With --ranks a job that dies is a failed trial, and the search continues. The script ends with the best rate and width,
and with their accuracy on 360 digits: 0.9 or more, and the same on any number of ranks.
The lines marked with <-- are what training on several processes takes.
"""

import argparse

import optuna

import tfdist


def train(rate, width, epochs):
    """One trial; its validation accuracy. As a job it runs in new processes, which import what they use."""
    import keras
    import tensorflow as tf
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    keras.utils.set_random_seed(1)
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype("float32")
    x, x_val, y, y_val = train_test_split(images, labels, test_size=360, random_state=0, stratify=labels)
    samples = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x), seed=1)
    samples = tfdist.shard(samples, global_batch=64)  # <-- 1: this process's part
    layers = [keras.Input((64,)), keras.layers.Dense(width, activation="relu"), keras.layers.Dense(10)]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(rate, momentum=0.9), loss, metrics=["accuracy"])
    callbacks = [tfdist.callbacks.DataParallel()]  # <-- 2: train together
    model.fit(samples, epochs=epochs, verbose=0, callbacks=callbacks)
    return model.evaluate(x_val, y_val, batch_size=360, verbose=0, return_dict=True)["accuracy"]


def create_study():
    return optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=1))


def choose(study):
    trial = study.ask()
    return trial, {
        "rate": trial.suggest_float("rate", 0.01, 0.3, log=True),
        "width": trial.suggest_int("width", 16, 64),
    }


def search_together(study, trials, epochs):
    """All ranks train each trial; rank 0 alone has the study."""
    for _ in range(trials):
        trial, values = choose(study) if tfdist.rank() == 0 else (None, None)
        values = tfdist.broadcast_object(values)  # <-- 3: what rank 0 has chosen
        accuracy = train(**values, epochs=epochs)
        if tfdist.rank() == 0:
            study.tell(trial, accuracy)


def search_by_jobs(study, trials, epochs, ranks):
    for _ in range(trials):
        trial, values = choose(study)
        try:
            accuracies = tfdist.run(train, kwargs={**values, "epochs": epochs}, num_proc=ranks)  # <-- 3: a job
            study.tell(trial, accuracies[0])
        except tfdist.errors.RankError as error:
            print(f"trial {trial.number} failed: {error}")
            study.tell(trial, state=optuna.trial.TrialState.FAIL)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--ranks", type=int, metavar="N", help="start a job of N ranks for each trial; not in tfdistrun"
    )
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()

    if options.ranks:
        study = create_study()
        search_by_jobs(study, options.trials, options.epochs, options.ranks)
    else:
        tfdist.init()
        study = create_study() if tfdist.rank() == 0 else None
        search_together(study, options.trials, options.epochs)
    if study is not None:
        print(f"best of {len(study.trials)}: {study.best_params}, validation accuracy: {study.best_value:.3f}")


if __name__ == "__main__":
    main()
