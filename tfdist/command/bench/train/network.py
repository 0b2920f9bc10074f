"""The networks that `tfdist bench train` supports, and the smallest image of each."""

from __future__ import annotations

import difflib

from tfdist.errors import ConfigError

# A small network for 8-pixel images, to try the command itself: its step is mostly overhead.
DIGITS = "digits"
_OF_32_PIXELS = (
    "ConvNeXtTiny ConvNeXtSmall ConvNeXtBase ConvNeXtLarge ConvNeXtXLarge DenseNet121 DenseNet169 DenseNet201 "
    "EfficientNetB0 EfficientNetB1 EfficientNetB2 EfficientNetB3 EfficientNetB4 EfficientNetB5 EfficientNetB6 "
    "EfficientNetB7 EfficientNetV2B0 EfficientNetV2B1 EfficientNetV2B2 EfficientNetV2B3 EfficientNetV2S "
    "EfficientNetV2M EfficientNetV2L MobileNet MobileNetV2 MobileNetV3Small MobileNetV3Large NASNetMobile NASNetLarge "
    "ResNet50 ResNet101 ResNet152 ResNet50V2 ResNet101V2 ResNet152V2 VGG16 VGG19"
)
# Source: the argument min_size of keras.applications' obtain_input_shape in each network's file.
LEAST_PIXELS = {
    DIGITS: 8,
    **dict.fromkeys(_OF_32_PIXELS.split(), 32),
    "InceptionV3": 75,
    "InceptionResNetV2": 75,
    "Xception": 71,
}


def check(name: str, pixels: int) -> None:
    """Raises ConfigError if there is no such network, or the images are too small for it."""
    if name not in LEAST_PIXELS:
        near = difflib.get_close_matches(name, LEAST_PIXELS, n=3, cutoff=0.5)
        advice = f"did you mean {' or '.join(near)}?" if near else f"expected one of {', '.join(LEAST_PIXELS)}"
        raise ConfigError(f"--model {name}: no such network of keras.applications; {advice}")
    least = LEAST_PIXELS[name]
    if pixels < least:
        raise ConfigError(
            f"--image-size {pixels} is too small for {name}, which needs images of {least} pixels or more; "
            f"use --image-size {least} or larger"
        )
