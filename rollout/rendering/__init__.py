"""Renderers, which convert messages to token ids and back."""

from trajgym.rollout.rendering._base import Parsed, Renderer
from trajgym.rollout.rendering._byte import ByteRenderer
from trajgym.rollout.rendering._image_spans import ShownImage
from trajgym.rollout.rendering._packaged import PackagedRenderer, renderer_for
from trajgym.rollout.rendering._processor import open_image, pixels_of, processor_name
from trajgym.rollout.rendering._template import TemplateRenderer
from trajgym.rollout.rendering._vision import VisionRenderer

__all__ = [
    "ByteRenderer",
    "PackagedRenderer",
    "Parsed",
    "Renderer",
    "ShownImage",
    "TemplateRenderer",
    "VisionRenderer",
    "open_image",
    "pixels_of",
    "processor_name",
    "renderer_for",
]
