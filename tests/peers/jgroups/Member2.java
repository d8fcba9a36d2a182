// A member of a group, made of JGroups 2.12, that does what standard input says.
// What goes in and out is described in Member5.java.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.zip.CRC32;

import org.jgroups.Address;
import org.jgroups.JChannel;
import org.jgroups.Message;
import org.jgroups.ReceiverAdapter;
import org.jgroups.View;

public class Member2 extends ReceiverAdapter {
    private final JChannel channel;

    private Member2(JChannel channel) {
        this.channel = channel;
    }

    public static void main(String[] args) throws Exception {
        JChannel channel = new JChannel(args[0]);
        Member2 member = new Member2(channel);
        channel.setName(args[2]);
        channel.setReceiver(member);
        channel.connect(args[1]);
        say("connected");
        member.obey();
        channel.close();
        System.exit(0);
    }

    private void obey() throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        while (true) {
            String line = in.readLine();
            if (line == null)
                Runtime.getRuntime().halt(3);
            String[] words = line.split(" ", 3);
            switch (words[0]) {
                case "all": send(null, text(line.substring(4))); break;
                case "to": send(find(words[1]), text(words[2])); break;
                case "large": send(find(words[1]), large(Integer.parseInt(words[2]))); break;
                case "burst":
                    for (int i = 0; i < Integer.parseInt(words[1]); i++)
                        send(null, text(words[2] + i));
                    break;
                case "leave": return;
                default: throw new IllegalArgumentException(line);
            }
        }
    }

    private void send(Address to, byte[] bytes) throws Exception {
        channel.send(new Message(to, null, bytes));
    }

    private Address find(String name) {
        if (name.equals("*"))
            return null;
        for (Address member : channel.getView().getMembers())
            if (member.toString().equals(name))
                return member;
        throw new IllegalArgumentException("nobody is called " + name);
    }

    static byte[] text(String text) {
        return ("t" + text).getBytes(StandardCharsets.UTF_8);
    }

    static byte[] large(int size) {
        byte[] bytes = new byte[size];
        for (int i = 0; i < size; i++)
            bytes[i] = (byte) (i * 31 + (i >> 8));
        bytes[0] = 'L';
        return bytes;
    }

    @Override
    public void receive(Message message) {
        byte[] bytes = message.getRawBuffer();
        int from = message.getOffset(), size = message.getLength();
        String who = message.getSrc().toString();
        if (bytes[from] == 't') {
            say("got " + who + " " + new String(bytes, from + 1, size - 1, StandardCharsets.UTF_8));
            return;
        }
        CRC32 sum = new CRC32();
        sum.update(bytes, from, size);
        say("large " + who + " " + size + " " + sum.getValue());
    }

    @Override
    public void viewAccepted(View view) {
        StringBuilder names = new StringBuilder();
        for (Address member : view.getMembers())
            names.append(names.length() == 0 ? "" : ",").append(member);
        say("view " + names);
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
