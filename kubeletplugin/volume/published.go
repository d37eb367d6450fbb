package volume

// Published is a volume that a pod has.
type Published struct {
	// Volume is the volume.
	Volume Volume
	// Pod is the pod.
	Pod Pod
	// Claim is the claim of a persistent volume.
	Claim Claim
	// Key identifies the use.
	Key Key
	// Path is where the volume is published, and Staging where it is staged, if the driver stages.
	Path, Staging string
}

// Published lists the volumes that pods have, sorted by volume and pod.
func (m *Manager) Published() []Published {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []Published
	for _, name := range sortedKeys(m.actors) {
		s := &m.actors[name].state
		for _, k := range s.keys() {
			u := s.uses[k]
			if u.want == nil || u.mount != present {
				continue
			}
			all = append(all, Published{
				Volume: u.want.Volume, Pod: u.want.Pod, Claim: u.want.Claim, Key: k, Path: m.target(k), Staging: m.staging(&u.want.Volume),
			})
		}
	}
	return all
}
