package devcluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// longPoll is how long a client that waits for a change is kept waiting before it gets the unchanged status.
const longPoll = 30 * time.Second

func (s *supervisor) listen(ctx context.Context) (net.Listener, error) {
	path := s.dir.Supervisor()
	// We hold the lock: a socket that is there belongs to a supervisor that is gone.
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove the socket of an earlier supervisor: %w", err)
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen for clients: %w", err)
	}
	return l, os.Chmod(path, 0o600)
}

func (s *supervisor) serve(ctx context.Context, l net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", s.handleStatus)
	mux.HandleFunc("POST /stop", func(http.ResponseWriter, *http.Request) { s.stop() })
	mux.HandleFunc("POST /processes/{name}/signal/{signal}", s.handleSignal)
	mux.HandleFunc("POST /processes/{name}/hold", func(w http.ResponseWriter, r *http.Request) {
		answer(w, s.procs.Hold(r.PathValue("name")))
	})
	mux.HandleFunc("POST /processes/{name}/release", func(w http.ResponseWriter, r *http.Request) {
		answer(w, s.procs.Release(r.PathValue("name")))
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, BaseContext: func(net.Listener) context.Context { return ctx }}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(l) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve clients: %w", err)
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_ = server.Shutdown(stop) // clients that linger are cut off when the process ends
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve clients: %w", err)
	}
	return nil
}

// handleStatus answers at once, or, when the client names the version that it knows, at the next change.
func (s *supervisor) handleStatus(w http.ResponseWriter, r *http.Request) {
	timer := time.NewTimer(longPoll)
	defer timer.Stop()
	status, changed := s.look()
	if known := r.URL.Query().Get("after"); known == strconv.Itoa(status.Version) {
		select {
		case <-changed:
		case <-timer.C:
		case <-r.Context().Done():
		}
		status, _ = s.look()
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(status) // a client that went away needs no answer
}

func (s *supervisor) handleSignal(w http.ResponseWriter, r *http.Request) {
	name := strings.ToUpper(r.PathValue("signal"))
	sig := unix.SignalNum("SIG" + strings.TrimPrefix(name, "SIG"))
	if sig == 0 {
		answer(w, fmt.Errorf("signal %q: no such signal", name))
		return
	}
	answer(w, s.procs.Signal(r.PathValue("name"), sig))
}

func answer(w http.ResponseWriter, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
	}
}
