package devcluster

import (
	"time"

	"github.com/longshore-csi/longshore/devcluster/internal/proc"
)

// Phase of a cluster.
type Phase string

// Phases of a cluster.
const (
	Starting Phase = "Starting"
	Running  Phase = "Running"
	Failed   Phase = "Failed"
	Stopping Phase = "Stopping"
)

// Status is what the supervisor knows of its cluster.
type Status struct {
	// Version grows with every change, so a client can wait for the next one.
	Version int   `json:"version"`
	Phase   Phase `json:"phase"`
	// Error says why the phase is Failed.
	Error string `json:"error,omitempty"`
	// Progress lists the steps of the start so far, for people.
	Progress []string `json:"progress"`
	// Drivers are the names of the CSI drivers that have answered, in the order of the options.
	Drivers    []string `json:"drivers"`
	Kubernetes string   `json:"kubernetes,omitempty"`
	Kubeconfig string   `json:"kubeconfig"`
	// Programs is the directory of the control plane's programs and of kubectl, in the version of the cluster.
	Programs  string        `json:"programs,omitempty"`
	Nodes     []string      `json:"nodes"`
	Started   time.Time     `json:"started"`
	Took      time.Duration `json:"took,omitempty"`
	Processes []Process     `json:"processes"`
	// StateDir is the state directory of the first driver, NodeDirs maps each node to its kubelet-like root directory.
	StateDir string            `json:"stateDir"`
	NodeDirs map[string]string `json:"nodeDirs"`
}

// ProcessState reports whether a process of the cluster runs.
type ProcessState string

// States of a process.
const (
	// ProcessStarting runs and is not ready yet.
	ProcessStarting ProcessState = "Starting"
	ProcessReady    ProcessState = "Ready"
	// ProcessBackoff has ended and waits to be started again.
	ProcessBackoff ProcessState = "Backoff"
	// ProcessHeld was stopped by Client.Hold and waits for Client.Release.
	ProcessHeld ProcessState = "Held"
)

// Process is what is known of one process of the cluster.
type Process struct {
	Name  string       `json:"name"`
	State ProcessState `json:"state"`
	// PID is 0 while the process does not run.
	PID      int `json:"pid,omitempty"`
	Restarts int `json:"restarts"`
	// Since is when the process was started or ended last.
	Since time.Time `json:"since"`
	// LastExit says how the process ended last, empty while it never did.
	LastExit string `json:"lastExit,omitempty"`
	// HTTP is the base URL of what the process serves: /metrics, /healthz, /debug/state. Empty for the control plane and for
	// a driver of the user's.
	HTTP string `json:"http,omitempty"`
}

func processes(all []proc.Status, http map[string]string) []Process {
	out := make([]Process, 0, len(all))
	for _, s := range all {
		out = append(out, Process{Name: s.Name, State: ProcessState(s.State), PID: s.PID, Restarts: s.Restarts, Since: s.Since, LastExit: s.LastExit, HTTP: http[s.Name]})
	}
	return out
}
