"""A client of server-sent events, as a browser's EventSource is one (HTML, section 9.2): reads fields
line by line, remembers the last id, connects anew when a stream ends, and stops at a 204."""
import http.client
import time


class Event:
    def __init__(self, kind, data, number):
        self.kind, self.data, self.number = kind, data, number


class EventSource:
    """`open` connects; `next` is the next event, or None once the stream has ended."""

    def __init__(self, daemon, path, last_id=None, timeout=20):
        self.daemon, self.path, self.last_id, self.timeout = daemon, path, last_id, timeout
        self.comments, self.retry_ms = 0, None
        self.connection = self.response = None

    def open(self):
        self.close()
        headers = {"Accept": "text/event-stream"}
        if self.last_id is not None:
            headers["Last-Event-ID"] = str(self.last_id)
        self.connection = http.client.HTTPConnection(self.daemon.host, self.daemon.port,
                                                     timeout=self.timeout)
        self.connection.request("GET", self.path, headers=headers)
        self.response = self.connection.getresponse()
        return self.response.status

    def close(self):
        if self.connection:
            self.connection.close()
        self.connection = self.response = None

    def next(self):
        kind, data = "message", []
        while True:
            try:
                line = self.response.readline()
            except (http.client.HTTPException, ConnectionError):
                return None
            if not line.endswith(b"\n"):
                return None  # an event that is cut short is none
            line = line.decode().rstrip("\r\n")
            if not line:
                if data:
                    return Event(kind, "\n".join(data), self.last_id)
                kind, data = "message", []
                continue
            name, _, value = line.partition(":")
            value = value[1:] if value.startswith(" ") else value
            if name == "":
                self.comments += 1
            elif name == "event":
                kind = value
            elif name == "data":
                data.append(value)
            elif name == "id":
                self.last_id = int(value)
            elif name == "retry":
                self.retry_ms = int(value)

    def all(self):
        """What is left of this stream."""
        events = []
        while True:
            event = self.next()
            if event is None:
                return events
            events.append(event)

    def follow(self, seconds=30):
        """Every event until the server says that there will be none, whatever happens to it."""
        events, end = [], time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                if self.open() == 204:
                    return events
                events += self.all()
            except OSError:
                pass  # it is being started
            time.sleep(0.02)
        return events
