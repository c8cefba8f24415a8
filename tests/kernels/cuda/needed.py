"""usage: needed.py PROGRAM: Checks that the program can start without the libraries of NVIDIA's
driver and of CUDA, which it looks for at run time."""
import re
import subprocess
import sys

text = subprocess.run(["readelf", "-d", sys.argv[1]], capture_output=True, text=True,
                      check=True).stdout
needed = re.findall(r"\(NEEDED\).*\[(.+)\]", text)
print(f"{sys.argv[1]} needs {', '.join(needed)}")
wrong = [name for name in needed if re.match(r"lib(cu(da|dart|blas)|nvidia|nvrtc|nvJitLink)", name)]
if not needed or wrong:
    print(f"FAIL: {', '.join(wrong) or 'nothing'} is needed to start")
    sys.exit(1)
