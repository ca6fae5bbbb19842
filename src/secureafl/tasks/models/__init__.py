"""The paper's models."""

from secureafl.tasks.models.cnn import paper_cnn as paper_cnn
from secureafl.tasks.models.resnet import ResNet20 as ResNet20
