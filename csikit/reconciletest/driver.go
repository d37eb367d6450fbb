package reconciletest

import (
	"encoding/json"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/longshore-csi/longshore/csikit/csitest"
)

// newDriver replaces the driver.
func (s *stage) newDriver(c *command) string {
	if s.running != nil {
		c.fatalf("driver must come before start")
	}
	s.driver = csitest.New(csitest.Options{
		Name:     c.text("name"),
		NodeID:   c.text("node"),
		Nodes:    c.list("nodes"),
		Topology: c.segment("topology"),

		OfflineExpansion: c.has("offline"),
		Controller:       capabilities[csi.ControllerServiceCapability_RPC_Type](c, "controller", csi.ControllerServiceCapability_RPC_Type_value),
		Node:             capabilities[csi.NodeServiceCapability_RPC_Type](c, "node-caps", csi.NodeServiceCapability_RPC_Type_value),
	})
	return ""
}

// capabilities reads a list of names; nil without the argument.
func capabilities[T ~int32](c *command, key string, values map[string]int32) []T {
	names := c.list(key)
	if names == nil {
		return nil
	}
	caps := make([]T, 0, len(names))
	for _, name := range names {
		value, ok := values[name]
		if !ok {
			c.fatalf("%s: %q is not a capability of the CSI specification", key, name)
		}
		caps = append(caps, T(value))
	}
	return caps
}

// caps changes the capabilities that the driver announces.
func (s *stage) caps(c *command) string {
	if controller := capabilities[csi.ControllerServiceCapability_RPC_Type](c, "controller", csi.ControllerServiceCapability_RPC_Type_value); controller != nil {
		s.driver.SetController(controller...)
	}
	if node := capabilities[csi.NodeServiceCapability_RPC_Type](c, "node", csi.NodeServiceCapability_RPC_Type_value); node != nil {
		s.driver.SetNode(node...)
	}
	return ""
}

// volume adds a volume without CreateVolume.
func (s *stage) volume(c *command) string {
	v := csitest.Volume{
		Name:     c.text("name"),
		Capacity: int64(c.number(c.text("capacity"))),
		Nodes:    c.list("node"),
		Topology: c.segment("topology"),
	}
	v.ID = c.word("the ID of the volume")
	s.driver.AddVolume(v)
	return ""
}

// vanish removes a volume.
func (s *stage) vanish(c *command) string {
	s.driver.RemoveVolume(c.word("the ID of the volume"))
	return ""
}

// volumes prints the volumes of the driver.
func (s *stage) volumes(c *command) string {
	list := s.driver.Volumes()
	if len(list) == 0 {
		return "(none)\n"
	}
	var printed string
	for _, v := range list {
		data, err := json.Marshal(v)
		if err != nil {
			c.fatalf("print volume %q: %v", v.ID, err)
		}
		var doc map[string]any
		if err := json.Unmarshal(data, &doc); err != nil {
			c.fatalf("print volume %q: %v", v.ID, err)
		}
		for key, value := range doc {
			if list, ok := value.([]any); value == nil || value == false || value == "" || ok && len(list) == 0 {
				delete(doc, key)
			}
		}
		printed += toYAML([]any{doc}) + "\n"
	}
	return printed
}

// fault injects a fault into CSI calls.
func (s *stage) fault(c *command) string {
	f := csitest.Fault{
		Method: c.text("method"), Message: c.text("message"), Delay: c.duration(c.text("delay")),
		Hang: c.has("hang"), After: c.has("after"), Times: c.number(c.text("times")),
	}
	if code := c.text("code"); code != "" {
		f.Code = c.code(code)
	}
	if c.has("crash") {
		s.crashes = append(s.crashes, &crashPoint{method: f.Method, after: f.After, times: max(f.Times, 1)})
		return ""
	}
	if f.Code == 0 && f.Delay == 0 && !f.Hang {
		c.fatalf("fault needs one of code=, delay=, hang, crash")
	}
	s.driver.Inject(f)
	return ""
}

// heal removes all faults.
func (s *stage) heal(*command) string {
	s.driver.Heal()
	s.cluster.Heal()
	s.crashes = nil
	return ""
}
