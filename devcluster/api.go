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
	// Driver is the name of the CSI driver, empty until the driver has told it.
	Driver     string        `json:"driver,omitempty"`
	Kubernetes string        `json:"kubernetes,omitempty"`
	Kubeconfig string        `json:"kubeconfig"`
	Nodes      []string      `json:"nodes"`
	Started    time.Time     `json:"started"`
	Took       time.Duration `json:"took,omitempty"`
	Processes  []proc.Status `json:"processes"`
	// StateDir is the driver's state directory, NodeDir maps each node to its kubelet-like root directory.
	StateDir string            `json:"stateDir"`
	NodeDirs map[string]string `json:"nodeDirs"`
}
