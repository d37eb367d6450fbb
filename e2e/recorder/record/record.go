// Package record is what the command recorder and the tests that run it say to each other.
package record

import (
	"encoding/json"
	"fmt"
	"path/filepath"

	"google.golang.org/grpc/codes"
)

// Config is that of a driver.
type Config struct {
	// Name is that of the driver; Node is the ID and the name of the node.
	Name, Node string
	// Root is the root directory of the kubelet.
	Root string
	// Capabilities are those of the node service, by the names of the specification.
	Capabilities []string
}

// Dir is the directory of the driver.
func (c Config) Dir() string { return filepath.Join(c.Root, "plugins", c.Name) }

// Socket is where the driver serves CSI.
func (c Config) Socket() string { return filepath.Join(c.Dir(), "csi.sock") }

// RegistrationSocket is where kubelets find the driver.
func (c Config) RegistrationSocket() string {
	return filepath.Join(c.Root, "plugins_registry", c.Name+"-reg.sock")
}

// Volume is the directory that is mounted as a volume; with the suffix .img it is the file behind its device.
func (c Config) Volume(id string) string { return filepath.Join(c.Dir(), "data", id) }

// Fault is an error that a method returns. One without a method is only answered.
type Fault struct {
	Method string
	Code   codes.Code
	// Times is the number of calls that get the error.
	Times int
	// Late has the driver do what it is asked for before it returns the error.
	Late bool
}

// Call is one call of the node service.
type Call struct {
	// Method is empty in the answer to a fault, which comes after the calls that were made before.
	Method string
	// Request is the message in JSON, with the field names of the specification.
	Request json.RawMessage
	// Paths says for each field that is a path what there was when the call came.
	Paths map[string]string
	// Code is that of the answer.
	Code string
}

// String is for errors.
func (c Call) String() string { return fmt.Sprintf("%s %s: %s", c.Method, c.Request, c.Code) }
