package devcluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/longshore-csi/longshore/devcluster/internal/plane"
	"github.com/longshore-csi/longshore/devcluster/internal/proc"
)

// claimInterval is how often a node looks at the claims of its mounted volumes, for expansions: someone is waiting for it.
const claimInterval = "5s"

// agent is a process of the node agent.
type agent struct {
	process string
	// first is the number in the name of the first node.
	first int
	nodes []string
}

// agents are the processes that are the nodes.
func (o *Options) agents() []agent {
	var all []agent
	names, size := NodeNames(o.Nodes), max(1, o.NodesPerAgent)
	for i := 0; i < len(names); i += size {
		a := agent{process: nodeAgent + "." + names[i], first: i + 1, nodes: names[i:min(i+size, len(names))]}
		if n := len(a.nodes); n > 1 {
			a.process += ".." + a.nodes[n-1]
		}
		all = append(all, a)
	}
	return all
}

// inAgent reports whether the driver of a node is in the process of the node agent.
func (o *Options) inAgent(d driver) bool { return o.NodesPerAgent > 1 && d.Path == "" }

func (s *starter) nodes(p *plane.Plane, drivers []driver) ([]proc.Spec, error) {
	var specs []proc.Spec
	for _, a := range s.options.agents() {
		spec, err := s.agentSpec(p, a, drivers)
		if err != nil {
			return nil, err
		}
		specs = append(specs, spec)
		for _, node := range a.nodes {
			for _, d := range drivers {
				more, err := s.driverOn(d, node)
				if err != nil {
					return nil, err
				}
				specs = append(specs, more...)
			}
		}
	}
	return specs, nil
}

// agentSpec runs the node agent of some nodes: one as itself, several by impersonation.
func (s *starter) agentSpec(p *plane.Plane, a agent, drivers []driver) (proc.Spec, error) {
	component, args := nodeAgent, []string{"--enable-pprof", "--self-attach=" + s.options.SelfAttach}
	if s.options.NodesPerAgent <= 1 { // Of many nodes, these would be most requests.
		args = append(args, "--sync-frequency="+claimInterval)
	}
	if s.options.MaxPods > 0 {
		args = append(args, "--max-pods="+strconv.Itoa(s.options.MaxPods))
	}
	for _, d := range drivers {
		if s.options.inAgent(d) {
			component, args = nodesWithDriver, append(args, "--driver-statedir="+s.dir.DriverState(d.suffix))
		}
	}
	var kubeconfig string
	var err error
	if node := a.nodes[0]; len(a.nodes) == 1 {
		kubeconfig, err = p.User(node, "system:node:"+node, "system:nodes")
		args = append(args, "--node-name="+node, "--root-dir="+s.dir.Node(node))
	} else {
		kubeconfig, err = p.User(nodeAgent, user(nodeAgent))
		args = append(args, fmt.Sprintf("--nodes=%d", len(a.nodes)), "--node-prefix="+nodePrefix, fmt.Sprintf("--first-node=%d", a.first), "--root-dir="+s.dir.Nodes())
	}
	return s.component(a.process, component, append(args, "--kubeconfig="+kubeconfig)...), err
}

// driverOn runs what a driver has on a node, beside the node agent.
func (s *starter) driverOn(d driver, node string) ([]proc.Spec, error) {
	if s.options.inAgent(d) {
		return nil, nil
	}
	socket, registry := s.nodeSocket(d, node), s.dir.Registry(node)
	for _, dir := range []string{filepath.Dir(socket), registry} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("make the directories of %s: %w", node, err)
		}
	}
	var specs []proc.Spec
	if d.split() { // otherwise it runs already
		specs = append(specs, s.nodeSpec(d, node))
	}
	return append(specs,
		s.component(d.process(registrar, node), registrar, "--csi-address="+socket, "--kubelet-registration-path="+socket, "--plugin-registration-path="+registry),
		s.component(d.process(livenessProbe, node), livenessProbe, "--csi-address="+socket),
	), nil
}
