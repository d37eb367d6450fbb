package testbed

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// AuditEvent has those fields of an audit.k8s.io/v1 Event that tests look at.
type AuditEvent struct {
	Verb       string
	RequestURI string
	User       struct{ Username string }
	// ImpersonatedUser is the user of a program that is measured (see contest in e2e/bench), and empty for all others.
	ImpersonatedUser struct{ Username string }
	ObjectRef        struct{ Resource, Subresource, APIGroup, Namespace string }
	ResponseStatus   struct{ Code int }
}

// Reads reports whether the request wrote nothing. The log has the reads of some users.
func (e AuditEvent) Reads() bool { return slices.Contains([]string{"get", "list", "watch"}, e.Verb) }

// ReadAudit decodes a line of the log; the error quotes it. An API server that is killed may leave the beginning of a line, behind which the next one goes on.
func ReadAudit(line []byte) (e AuditEvent, err error) {
	whole := max(0, bytes.LastIndex(line, []byte(`{"kind":"Event",`)))
	if err := json.Unmarshal(line[whole:], &e); err != nil {
		return e, fmt.Errorf("line %q: %w", line, err)
	}
	return e, nil
}

// ComponentUser is the prefix of the names of the components' users.
const ComponentUser = "longshore:"

// ShortUser returns the name of a user without its prefix, "csi-attacher" for instance. All nodes have the name of their agent, "csi-node-agent".
func ShortUser(user string) string {
	if strings.HasPrefix(user, "system:node:") {
		return "csi-node-agent"
	}
	user = strings.TrimPrefix(user, ComponentUser)
	user = strings.TrimPrefix(user, "system:serviceaccount:kube-system:")
	return strings.TrimPrefix(user, "system:")
}
