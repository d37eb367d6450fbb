package reconciletest

import (
	"encoding/json"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/longshore-csi/longshore/csikittest/csitest"
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

		OfflineExpansion:   c.has("offline"),
		SnapshotReadyAfter: c.number(c.text("ready-after")),
		NoCreationTime:     c.has("no-creation-time"),
		SnapshotTopology:   c.has("snapshot-topology"),
		Controller:         capabilities[csi.ControllerServiceCapability_RPC_Type](c, "controller", csi.ControllerServiceCapability_RPC_Type_value),
		GroupController:    capabilities[csi.GroupControllerServiceCapability_RPC_Type](c, "group", csi.GroupControllerServiceCapability_RPC_Type_value),
		Node:               capabilities[csi.NodeServiceCapability_RPC_Type](c, "node-caps", csi.NodeServiceCapability_RPC_Type_value),
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
		if name == "VOLUME_CONDITION" {
			value, ok = int32(csitest.ConditionCapability), key == "controller"
		}
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
	if group := capabilities[csi.GroupControllerServiceCapability_RPC_Type](c, "group", csi.GroupControllerServiceCapability_RPC_Type_value); group != nil {
		s.driver.SetGroupController(group...)
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

// health sets what the driver reports of a volume.
func (s *stage) health(c *command) string {
	abnormal := c.text("abnormal")
	problem := &csitest.Problem{Status: csi.VolumeHealthErrorType(c.number(c.text("status"))), Reason: c.text("reason"), Message: c.text("message")}
	if category := c.text("category"); category != "" {
		value, ok := csi.VolumeHealthErrorType_value[category]
		if !ok {
			c.fatalf("category: %q is not one of the CSI specification", category)
		}
		problem.Status = csi.VolumeHealthErrorType(value)
	}
	id := c.word("the ID of the volume")
	s.driver.SetCondition(id, abnormal != "", abnormal)
	s.driver.SetHealth(id)
	if problem.GetStatus() != 0 {
		s.driver.SetHealth(id, problem)
	}
	return ""
}

// volumes prints the volumes of the driver.
func (s *stage) volumes(c *command) string { return printAll(c, s.driver.Volumes()) }

// snapshot adds a snapshot without CreateSnapshot.
func (s *stage) snapshot(c *command) string {
	added := csitest.Snapshot{
		Size: int64(c.number(c.text("size"))), SourceVolume: c.text("volume"), Group: c.text("group"),
		ReadyAfter: c.number(c.text("ready-after")), Created: time.Now(), Topology: c.segment("topology"),
	}
	added.ID = c.word("the ID of the snapshot")
	s.driver.AddSnapshot(added)
	return ""
}

// groupSnapshot adds a group snapshot of snapshots that exist.
func (s *stage) groupSnapshot(c *command) string {
	added := csitest.GroupSnapshot{Snapshots: c.list("snapshots"), Created: time.Now()}
	added.ID = c.word("the ID of the group snapshot")
	s.driver.AddGroupSnapshot(added)
	return ""
}

// snapshots prints the snapshots of the driver, then its group snapshots.
func (s *stage) snapshots(c *command) string {
	printed := printAll(c, s.driver.Snapshots())
	if groups := s.driver.GroupSnapshots(); len(groups) > 0 {
		printed += printAll(c, groups)
	}
	return printed
}

// printAll prints what the driver has, without what is empty, and without times.
func printAll[T any](c *command, list []T) string {
	if len(list) == 0 {
		return "(none)\n"
	}
	var printed string
	for _, v := range list {
		data, err := json.Marshal(v)
		if err != nil {
			c.fatalf("print %+v: %v", v, err)
		}
		var doc map[string]any
		if err := json.Unmarshal(data, &doc); err != nil {
			c.fatalf("print %+v: %v", v, err)
		}
		delete(doc, "Created")
		for key, value := range doc {
			if list, ok := value.([]any); value == nil || value == false || value == "" || value == 0.0 || ok && len(list) == 0 {
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
