"""The program itself is not linked to an MPI library, and the module is.
usage: needs_no_mpi.py LATENTD MODULE"""
import subprocess
import sys


def libraries(path):
    out = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
    return [line.split()[0].rpartition("/")[2] for line in out.splitlines() if line.strip()]


def of_mpi(names):
    return [n for n in names if n.startswith(("libmpi", "libmpich", "libpmi", "libopen-", "liborte", "libprrte"))]


latentd, module = sys.argv[1:3]
names = libraries(latentd)
print(f"latentd needs {len(names)} libraries: {' '.join(names)}")
ok = not of_mpi(names)
if module:
    print(f"cluster-mpi.so needs {of_mpi(libraries(module))}")
    ok &= bool(of_mpi(libraries(module)))
sys.exit(0 if ok else 1)
