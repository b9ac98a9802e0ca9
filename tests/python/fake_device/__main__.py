from fake_device import compile_here

print(compile_here())
