package clusters

import (
	"os"
	"os/exec"
	"slices"
	"time"

	"github.com/longshore-csi/longshore/e2e/apiproxy"
)

// half is one of the two programs.
type half struct {
	l                *snapshotLeaks
	name, whose, log string
	command          []string
	proxy            *apiproxy.Proxy
	cmd              *exec.Cmd
	ended            chan struct{}
	// startAt is the earliest time of the next start.
	startAt time.Time
}

// start starts the program. Every third life it may send few requests.
func (h *half) start() {
	h.l.T.Helper()
	log, err := os.OpenFile(h.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		h.l.T.Fatal(err)
	}
	defer log.Close()
	limit := []string{"--kube-api-qps=200", "--kube-api-burst=400"}
	if h.l.random.once(3) && !h.l.driver.isHealed() {
		limit = []string{"--kube-api-qps=20", "--kube-api-burst=5"}
		h.l.counts.add("throttled lives")
	}
	args := slices.Concat(h.command[1:], limit)
	h.cmd = exec.Command(h.command[0], args...)
	h.cmd.Env = append(os.Environ(), "KUBECONFIG=", "KUBE_FEATURE_WatchListClient=false")
	h.cmd.Stdout, h.cmd.Stderr = log, log
	if err := h.cmd.Start(); err != nil {
		h.l.T.Fatal(err)
	}
	h.ended = make(chan struct{})
	go func(cmd *exec.Cmd, ended chan struct{}) {
		defer close(ended)
		_ = cmd.Wait()
	}(h.cmd, h.ended)
}

// kill ends the program, if it runs.
func (h *half) kill() {
	_ = h.cmd.Process.Kill()
	<-h.ended
}

func (h *half) hasEnded() bool {
	select {
	case <-h.ended:
		return true
	default:
		return false
	}
}
