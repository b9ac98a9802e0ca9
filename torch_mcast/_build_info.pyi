# Written by the build (cmake/TorchExtension.cmake).
TORCH_VERSION: str
VERSION: str
