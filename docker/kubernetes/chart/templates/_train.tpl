{{/* The two kinds of pods of a job: with agents, with ssh, and with ssh and the keys of Kubeflow's operator. Of Kubeflow
     Trainer there are workers only, the first of which starts the ranks. */}}

{{/* Whether the launcher reaches the workers by ssh; empty if their agents come to it. */}}
{{- define "tfdist.bySsh" -}}
{{- if or .Values.train.operator .Values.train.ssh }}true{{ end }}
{{- end }}

{{/* Variables of who starts the ranks. */}}
{{- define "tfdist.jobVariables" -}}
- name: WORKER_TIMEOUT
  value: {{ int64 .Values.train.workerTimeout | quote }}
{{- with .Values.train.launchOptions }}
- name: LAUNCH_OPTIONS
  value: {{ . | quote }}
{{- end }}
{{- if .Values.dataService.enabled }}
- name: TFDIST_DATA_SERVICE
  value: {{ .Release.Name }}-dispatcher:5050
{{- end }}
{{- range $name, $value := .Values.train.environment }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}

{{- define "tfdist.workerPod" -}}
{{- include "tfdist.podSettings" . }}
terminationGracePeriodSeconds: 30
containers:
  - name: {{ if .Values.train.trainer }}node{{ else }}worker{{ end }}
    image: {{ .Values.image }}
    {{- include "tfdist.containerSettings" . | nindent 4 }}
    {{- if .Values.train.trainer }}
    args: [tfdist-node] # those of the TrainJob replace it
    {{- else }}
    args: [{{ if include "tfdist.bySsh" . }}tfdist-worker{{ else }}tfdist-agent{{ end }}]
    {{- end }}
    env:
      {{- if .Values.train.trainer }}
      - name: JOB_KEY
        value: /run/tfdist/keys/job_key
      {{- include "tfdist.jobVariables" . | nindent 6 }}
      {{- else if not (include "tfdist.bySsh" .) }}
      - name: LAUNCHER
        value: {{ .Release.Name }}-launcher:4000
      - name: JOB_KEY
        value: /run/tfdist/keys/job_key
      - name: SLOTS
        value: {{ int64 .Values.train.slots | quote }}
      # A day: the launcher decides how long both wait.
      - name: LAUNCHER_TIMEOUT
        value: "86400"
      - name: STAY
        value: "true"
      {{- else if .Values.train.operator }}
      - name: HOST_KEY
        value: /run/tfdist/keys/id_rsa
      - name: LAUNCHER_KEY
        value: /run/tfdist/keys/authorized_keys
      {{- else }}
      - name: HOST_KEY
        value: /run/tfdist/keys/host_key
      - name: LAUNCHER_KEY
        value: /run/tfdist/keys/launcher_key.pub
      {{- end }}
    {{- if include "tfdist.bySsh" . }}
    ports:
      - name: ssh
        containerPort: 2222
    # sshd writes it when it listens; a probe of the port would be logged as an attack.
    readinessProbe:
      exec:
        command: [test, -s, /run/tfdist/own/sshd.pid]
      periodSeconds: 2
    {{- end }}
    resources:
      {{- toYaml .Values.train.worker.resources | nindent 6 }}
    volumeMounts:
      - name: job
        mountPath: /job
        readOnly: true
      - name: data
        mountPath: /data
      - name: checkpoints
        mountPath: /checkpoints
      {{- if not .Values.train.operator }}
      - name: keys
        mountPath: /run/tfdist/keys
        readOnly: true
      {{- end }}
      {{- if include "tfdist.bySsh" . }}
      - name: own
        mountPath: /run/tfdist/own
      {{- end }}
      - name: shared-memory
        mountPath: /dev/shm
      - name: temporary
        mountPath: /tmp
volumes:
  {{- include "tfdist.jobVolume" . | nindent 2 }}
  {{- include "tfdist.volume" (list "data" .Values.volumes.data) | nindent 2 }}
  {{- include "tfdist.volume" (list "checkpoints" .Values.volumes.checkpoints) | nindent 2 }}
  {{- if .Values.train.operator }}
  {{- else if .Values.train.ssh }}
  {{- include "tfdist.keysVolume" (list . "host_key" "launcher_key.pub") | nindent 2 }}
  {{- else }}
  {{- include "tfdist.keysVolume" (list . "job_key") | nindent 2 }}
  {{- end }}
  {{- if include "tfdist.bySsh" . }}
  {{- include "tfdist.memory" (list "own" "1Mi") | nindent 2 }}
  {{- end }}
  {{- include "tfdist.memory" (list "shared-memory" .Values.train.worker.sharedMemory) | nindent 2 }}
  - name: temporary
    emptyDir:
      sizeLimit: {{ .Values.train.worker.temporary }}
{{- with .Values.train.worker.pod }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "tfdist.launcherPod" -}}
{{- include "tfdist.podSettings" . }}
# tfdistrun gives the ranks 20 s to save what they have.
terminationGracePeriodSeconds: 30
containers:
  - name: launcher
    image: {{ .Values.image }}
    {{- include "tfdist.containerSettings" . | nindent 4 }}
    args: {{ prepend .Values.train.command "tfdist-launcher" | toJson }}
    env:
      {{- if not (include "tfdist.bySsh" .) }}
      - name: AGENTS_PORT
        value: "4000"
      - name: JOB_KEY
        value: /run/tfdist/keys/job_key
      {{- else if .Values.train.operator }}
      - name: LAUNCHER_KEY
        value: /run/tfdist/keys/id_rsa
      - name: HOST_KEY
        value: /run/tfdist/keys/id_rsa.pub
      - name: HOSTFILE
        value: /etc/mpi/hostfile
      {{- else }}
      - name: LAUNCHER_KEY
        value: /run/tfdist/keys/launcher_key
      - name: HOST_KEY
        value: /run/tfdist/keys/host_key.pub
      - name: WORKER_SERVICE
        value: {{ .Release.Name }}-worker
      {{- end }}
      {{- if not .Values.train.operator }}
      - name: WORKERS
        value: {{ int64 .Values.train.workers | quote }}
      - name: SLOTS
        value: {{ int64 .Values.train.slots | quote }}
      {{- end }}
      {{- include "tfdist.jobVariables" . | nindent 6 }}
    {{- if not (include "tfdist.bySsh" .) }}
    ports:
      - name: agents
        containerPort: 4000
    {{- end }}
    resources:
      {{- toYaml .Values.train.launcher.resources | nindent 6 }}
    volumeMounts:
      - name: job
        mountPath: /job
        readOnly: true
      {{- if not .Values.train.operator }}
      - name: keys
        mountPath: /run/tfdist/keys
        readOnly: true
      {{- end }}
      {{- if include "tfdist.bySsh" . }}
      - name: own
        mountPath: /var/lib/tfdist/.ssh
      {{- end }}
      - name: temporary
        mountPath: /tmp
volumes:
  {{- include "tfdist.jobVolume" . | nindent 2 }}
  {{- if .Values.train.operator }}
  {{- else if .Values.train.ssh }}
  {{- include "tfdist.keysVolume" (list . "launcher_key" "host_key.pub") | nindent 2 }}
  {{- else }}
  {{- include "tfdist.keysVolume" (list . "job_key") | nindent 2 }}
  {{- end }}
  {{- if include "tfdist.bySsh" . }}
  {{- include "tfdist.memory" (list "own" "1Mi") | nindent 2 }}
  {{- end }}
  - name: temporary
    emptyDir:
      sizeLimit: 1Gi
{{- with .Values.train.launcher.pod }}
{{ toYaml . }}
{{- end }}
{{- end }}
