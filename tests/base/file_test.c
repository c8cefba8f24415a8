/* Tests writing over existing files, in comparison with open(2), rename(2) and the shell's ">", and
 * reading with a size limit. */
#include "base/file.h"
#include "tests/check.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[] = "/tmp/file_test.XXXXXX";

/* Records the order of syncs and renames. The linker calls the wrappers below instead of the C
 * library's functions. */
static struct {
    ino_t synced;           /* the file synced last */
    int renames, too_early; /* too_early: renames before the file was synced */
    bool is_folder_synced;  /* since the last rename */
} disk;

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);

int __wrap_fsync(int fd) {
    struct stat st;
    if (fstat(fd, &st) == 0 && S_ISDIR(st.st_mode))
        disk.is_folder_synced = true;
    else
        disk.synced = st.st_ino;
    return __real_fsync(fd);
}

int __wrap_rename(const char *from, const char *to) {
    struct stat st;
    disk.renames++;
    disk.too_early += stat(from, &st) != 0 || st.st_ino != disk.synced;
    disk.is_folder_synced = false;
    return __real_rename(from, to);
}

static const char *in_folder(const char *name) {
    static char paths[4][128];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof(paths[0]), "%s/%s", folder, name);
    return path;
}

static bool write_text(const char *path, const char *text, struct error *err) {
    const size_t half = strlen(text) / 2;
    const struct file_part parts[] = { { text, half }, { text + half, strlen(text) - half } };
    return file_write(path, parts, 2, err);
}

static void check_content(const char *path, const char *text) {
    struct error err = { 0 };
    char *got = NULL;
    size_t size = 0;
    CHECK(file_read(path, 100, &got, &size, &err), "%s", err.message);
    CHECK(size == strlen(text), "%s: %zu bytes", path, size);
    CHECK_STRING(got, text);
    free(got);
}

static int mode_of(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 ? (int)(st.st_mode & 07777) : -1;
}

static int files_in_folder(void) {
    DIR *dir = opendir(folder);
    int count = 0;
    while (dir && readdir(dir))
        count++;
    closedir(dir);
    return count - 2; /* . and .. */
}

/* As with open(2): a new file gets mode 0666 without the umask's bits, an existing file keeps its
 * mode. */
static void modes_are_those_of_the_umask_or_of_the_old_file(void) {
    struct error err = { 0 };
    const char *path = in_folder("mode");
    const mode_t before = umask(027);
    CHECK(write_text(path, "new", &err), "%s", err.message);
    CHECK(mode_of(path) == 0640, "a new file under umask 027: %o", mode_of(path));
    CHECK(chmod(path, 0600) == 0, "chmod");
    CHECK(write_text(path, "again", &err), "%s", err.message);
    CHECK(mode_of(path) == 0600, "a file of mode 600: %o", mode_of(path));
    umask(before);
    check_content(path, "again");
    CHECK(files_in_folder() == 1, "%d files, not 1", files_in_folder());
}

static void a_reader_keeps_the_old_file(void) {
    struct error err = { 0 };
    const char *path = in_folder("mode");
    char got[8] = { 0 };
    int fd = open(path, O_RDONLY);
    CHECK(write_text(path, "other", &err), "%s", err.message);
    CHECK(read(fd, got, 5) == 5 && memcmp(got, "again", 5) == 0,
        "the open descriptor reads \"%s\", not the new text", got);
    close(fd);
    check_content(path, "other");
}

/* Even if the power fails, the name leads to all of the old bytes or to all of the new ones. */
static void a_name_comes_after_its_bytes(void) {
    struct error err = { 0 };
    disk.renames = disk.too_early = 0;
    CHECK(write_text(in_folder("mode"), "durable", &err), "%s", err.message);
    printf("a file is written by %d rename(s), %d of them before its bytes were synced; the folder "
           "is %s\n",
        disk.renames, disk.too_early, disk.is_folder_synced ? "synced" : "not synced");
    CHECK(disk.renames == 1 && disk.too_early == 0 && disk.is_folder_synced,
        "the file is not synced before its one rename, or the folder not after it");
}

static void links_stay_links(void) {
    struct error err = { 0 };
    struct stat st;
    const char *link = in_folder("link"), *dangling = in_folder("dangling");
    CHECK(symlink("mode", link) == 0 && symlink("later", dangling) == 0, "symlinks");
    CHECK(write_text(link, "by the link", &err), "%s", err.message);
    CHECK(lstat(link, &st) == 0 && S_ISLNK(st.st_mode), "the link became a file");
    check_content(in_folder("mode"), "by the link");
    CHECK(mode_of(in_folder("mode")) == 0600, "%o", mode_of(in_folder("mode")));
    CHECK(file_check_writable(dangling, &err), "%s", err.message);
    CHECK(access(in_folder("later"), F_OK) != 0, "file_check_writable left the file it had tried");
    CHECK(write_text(dangling, "made", &err), "%s", err.message);
    CHECK(lstat(dangling, &st) == 0 && S_ISLNK(st.st_mode), "the link became a file");
    check_content(in_folder("later"), "made");
}

/* The bytes reach the reader of a FIFO, and the FIFO is not replaced by a file. */
static void fifos_and_devices_are_written_through(void) {
    struct error err = { 0 };
    struct stat st;
    const char *fifo = in_folder("fifo");
    char got[16] = { 0 };
    CHECK(mkfifo(fifo, 0600) == 0, "mkfifo");
    CHECK(file_check_writable(fifo, &err), "%s", err.message);
    int fd = open(fifo, O_RDONLY | O_NONBLOCK);
    CHECK(write_text(fifo, "through", &err), "%s", err.message);
    CHECK(read(fd, got, sizeof(got)) == 7 && strcmp(got, "through") == 0, "the reader got \"%s\"",
        got);
    close(fd);
    CHECK(lstat(fifo, &st) == 0 && S_ISFIFO(st.st_mode), "the FIFO became a file");
    /* A new pseudo-terminal: a bug here must not write to a device that is in use. */
    int terminal = posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK);
    if (terminal < 0 || grantpt(terminal) != 0 || unlockpt(terminal) != 0)
        return;
    const char *device = ptsname(terminal);
    CHECK(file_check_writable(device, &err) && write_text(device, "seen", &err), "%s", err.message);
    memset(got, 0, sizeof(got));
    /* A terminal may deliver the bytes in several parts, after some time. */
    struct pollfd shown = { .fd = terminal, .events = POLLIN };
    for (ssize_t n = 0, more; n < 4 && poll(&shown, 1, 10000) == 1; n += more)
        if ((more = read(terminal, got + n, sizeof(got) - 1 - (size_t)n)) <= 0)
            break;
    CHECK(strcmp(got, "seen") == 0, "the mapped file shows \"%s\"", got);
    close(terminal);
}

/* If a write stops part-way with an error, as on a full disk, the old file keeps its bytes and no
 * other file remains. */
static void a_failure_leaves_the_old_file(void) {
    struct error err = { 0 };
    struct rlimit before;
    const char *path = in_folder("mode");
    const int files = files_in_folder();
    getrlimit(RLIMIT_FSIZE, &before);
    const struct rlimit small = { 4, before.rlim_max };
    signal(SIGXFSZ, SIG_IGN);
    CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0, "setrlimit");
    bool ok = write_text(path, "too much for it", &err);
    setrlimit(RLIMIT_FSIZE, &before);
    CHECK(!ok, "15 bytes where 4 are allowed");
    CHECK_CONTAINS(err.message, "/mode: File too large");
    check_content(path, "by the link");
    CHECK(files_in_folder() == files, "%d files, not %d", files_in_folder(), files);
}

static void standard_output_is_a_dash(void) {
    struct error err = { 0 };
    const char *path = in_folder("stdout");
    fflush(stdout);
    int kept = dup(STDOUT_FILENO), fd = open(path, O_WRONLY | O_CREAT, 0600);
    dup2(fd, STDOUT_FILENO);
    bool ok = write_text("-", "one", &err) && write_text("/dev/stdout", "two", &err) &&
              file_check_writable("-", &err);
    close(STDOUT_FILENO);
    struct error closed = { 0 };
    bool closed_ok = file_check_writable("-", &closed) || write_text("-", "x", NULL);
    dup2(kept, STDOUT_FILENO);
    CHECK(ok, "%s", err.message);
    CHECK(!closed_ok, "closing a closed standard output succeeds");
    CHECK_STRING(closed.message, "cannot write standard output: it is closed");
    check_content(path, "onetwo");
    close(fd);
    close(kept);
}

/* The other end of a terminal or of an inherited descriptor can set O_NONBLOCK, because both ends
 * share the flag. So a full pipe is no error; the write waits. */
static void a_full_pipe_is_waited_for(void) {
    enum { SIZE = 1 << 20 }; /* far more than a pipe holds */
    struct error err = { 0 };
    int ends[2], status = 0;
    char *bytes = calloc(1, SIZE);
    const struct file_part part = { bytes, SIZE };
    CHECK(bytes && pipe(ends) == 0 && fcntl(ends[1], F_SETFL, O_NONBLOCK) == 0, "a pipe");
    fflush(stdout);
    const pid_t reader = fork();
    if (reader == 0) {
        ssize_t n, sum = 0;
        close(ends[1]);
        usleep(50000); /* until the pipe is full */
        while ((n = read(ends[0], bytes, SIZE)) > 0)
            sum += n;
        _exit(sum != SIZE);
    }
    int kept = dup(STDOUT_FILENO);
    dup2(ends[1], STDOUT_FILENO);
    close(ends[0]);
    close(ends[1]);
    bool ok = file_write("-", &part, 1, &err);
    dup2(kept, STDOUT_FILENO);
    close(kept);
    waitpid(reader, &status, 0);
    CHECK(ok && status == 0, "%s, the reader's status %d", err.message, status);
    free(bytes);
}

/* Reading an empty pipe that has O_NONBLOCK set is no error; the read waits. */
static void an_empty_pipe_is_waited_for(void) {
    struct error err = { 0 };
    int ends[2];
    char *got = NULL;
    size_t size = 0;
    CHECK(pipe(ends) == 0 && fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0, "a pipe");
    fflush(stdout);
    const pid_t writer = fork();
    if (writer == 0) {
        usleep(50000);
        _exit(write(ends[1], "late", 4) != 4);
    }
    int kept = dup(STDIN_FILENO);
    dup2(ends[0], STDIN_FILENO);
    close(ends[0]);
    close(ends[1]);
    bool ok = file_read_stream("-", 9, &got, &size, &err);
    dup2(kept, STDIN_FILENO);
    close(kept);
    waitpid(writer, NULL, 0);
    CHECK(ok && size == 4 && strcmp(got, "late") == 0, "%s", err.message);
    free(got);
    got = NULL;
    const char *path = in_folder("stream");
    CHECK(write_text(path, "0123456789", &err), "%s", err.message);
    CHECK(!file_read_stream(path, 9, &got, &size, &err), "10 bytes where 9 are allowed");
    CHECK(err.code == ERROR_TOO_LARGE, "%s", err.message);
    CHECK(file_read_stream(path, 10, &got, &size, &err) && size == 10, "%s", err.message);
    free(got);
    CHECK(!file_read_stream(folder, 9, &got, &size, &err) && err.code == ERROR_IO, "a folder");
}

static void check_both_refuse(const char *path, const char *words) {
    struct error asked = { 0 }, written = { 0 };
    CHECK(!file_check_writable(path, &asked), "%s can be written", path);
    CHECK(!write_text(path, "x", &written), "%s was written", path);
    CHECK(asked.code == ERROR_IO, "%d", asked.code);
    CHECK_CONTAINS(asked.message, words);
    CHECK_STRING(asked.message, written.message);
}

static void what_cannot_be_written_is_known_before(void) {
    const int before = files_in_folder();
    struct error err = { 0 };
    check_both_refuse(folder, "Is a directory");
    check_both_refuse(in_folder("no/such"), "No such file or directory");
    check_both_refuse(in_folder("mode/x"), "Not a directory");
    CHECK(file_check_writable(in_folder("free"), &err), "%s", err.message);
    CHECK(files_in_folder() == before, "file_check_writable left a file");
}

/* Runs in a process that is not root: for root every folder is open. */
static void without_rights(void) {
    const char *closed = in_folder("closed");
    char inside[128], fresh[128];
    snprintf(inside, sizeof(inside), "%s/inside", closed);
    snprintf(fresh, sizeof(fresh), "%s/fresh", closed);
    struct error err = { 0 };
    CHECK(mkdir(closed, 0755) == 0 && write_text(inside, "before it is closed", &err), "%s",
        err.message);
    CHECK(
        chmod(folder, 0755) == 0 && chmod(inside, 0666) == 0 && chmod(closed, 0555) == 0, "modes");
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        checks_passed = checks_failed = 0;
        if (getuid() == 0 && setresuid(65534, 65534, 65534) != 0)
            _exit(77);
        check_both_refuse(fresh, "Permission denied");
        CHECK(file_check_writable(inside, &err), "%s", err.message);
        CHECK(write_text(inside, "still", &err), "%s", err.message);
        fflush(stdout);
        _exit(checks_failed > 0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 77), "status %d",
        status);
    check_content(inside, "still");
    CHECK(chmod(closed, 0755) == 0, "chmod");
}

static void reading_has_a_ceiling(void) {
    struct error err = { 0 };
    const char *path = in_folder("long");
    char *got;
    size_t size;
    CHECK(write_text(path, "0123456789", &err), "%s", err.message);
    CHECK(!file_read(path, 9, &got, &size, &err), "10 bytes where 9 are allowed");
    CHECK(err.code == ERROR_TOO_LARGE, "%s", err.message);
    CHECK(file_read(path, 10, &got, &size, &err) && size == 10 && got[10] == 0, "%s", err.message);
    free(got);
    CHECK(
        !file_read(in_folder("none"), 9, &got, &size, &err), "a file that does not exist is read");
    CHECK(err.code == ERROR_NOT_FOUND, "%s", err.message);
    CHECK(!file_read(in_folder("fifo"), 9, &got, &size, &err), "a FIFO");
    CHECK(err.code == ERROR_INVALID, "%s", err.message);
    CHECK(file_exists(path) && !file_exists(folder) && !file_exists(in_folder("none")), "exists");
    CHECK(file_is_folder(folder) && !file_is_folder(path), "folders");
}

static void a_tree_goes_and_what_its_links_lead_to_stays(void) {
    char command[512];
    snprintf(command, sizeof(command),
        "cd %s && mkdir -p outside tree/a/b && echo x >outside/x && echo y >tree/a/b/y && "
        "ln -s ../outside tree/link && ln -s ../../outside/x tree/a/x",
        folder);
    CHECK(system(command) == 0, "%s", command);
    const int at = open(folder, O_RDONLY | O_DIRECTORY);
    file_remove_tree(at, "tree");
    CHECK(!file_is_folder(in_folder("tree")), "the removed folder still exists");
    CHECK(file_exists(in_folder("outside/x")),
        "the target of a link in the removed folder was removed");
    /* The tree's own name may be a link, which must not be followed. */
    CHECK(symlinkat("outside", at, "tree") == 0, "cannot make a link in the folder's place");
    file_remove_tree(at, "tree");
    CHECK(file_exists(in_folder("outside/x")), "removing a link removed its target");
    file_remove_tree(at, "none");
    close(at);
}

int main(void) {
    if (!mkdtemp(folder))
        return 1;
    modes_are_those_of_the_umask_or_of_the_old_file();
    a_reader_keeps_the_old_file();
    a_name_comes_after_its_bytes();
    links_stay_links();
    fifos_and_devices_are_written_through();
    a_failure_leaves_the_old_file();
    standard_output_is_a_dash();
    a_full_pipe_is_waited_for();
    an_empty_pipe_is_waited_for();
    what_cannot_be_written_is_known_before();
    without_rights();
    reading_has_a_ceiling();
    a_tree_goes_and_what_its_links_lead_to_stays();
    char command[64];
    snprintf(command, sizeof(command), "rm -r %s", folder);
    return system(command) != 0 ? 1 : check_done();
}
